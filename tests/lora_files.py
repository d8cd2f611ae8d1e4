"""Random LoRA files for tiny models, in the spellings that are published, and what they add by plain arithmetic."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

Factors = dict[str, tuple[np.ndarray, np.ndarray]]  # by module: down [r, K], up [N, r]


def random_factors(
    shapes: Mapping[str, tuple[int, ...]], modules: Iterable[str], rank: int = 3, seed: int = 0
) -> Factors:
    """Factors for modules of a checkpoint with these shapes, large enough to change what a network gives."""
    factors = {}
    for module in modules:
        rows, columns = shapes[f"{module}.weight"]
        rng = np.random.default_rng([seed, zlib.crc32(module.encode())])
        down = rng.standard_normal((rank, columns), dtype=np.float32) / np.float32(np.sqrt(columns))
        factors[module] = (down, rng.standard_normal((rows, rank), dtype=np.float32) / 2)
    return factors


def write_lora(
    path: Path,
    factors: Factors,
    prefix: str = "transformer.",
    names: tuple[str, str] = ("lora_A", "lora_B"),
    alpha: float | None = None,
    flat: bool = False,
) -> Path:
    """One tensor per factor, `prefix`MODULE.`name`.weight; alpha is a tensor beside them; flat: dots become `_`."""
    tensors = {}
    for module, pair in factors.items():
        spelled = prefix + (module.replace(".", "_") if flat else module)
        for name, values in zip(names, pair, strict=True):
            tensors[f"{spelled}.{name}.weight"] = np.ascontiguousarray(values)
        if alpha is not None:
            tensors[f"{spelled}.alpha"] = np.float32([alpha]).reshape(())
    save_file(tensors, path)
    return path


def fused(factors: Factors, modules: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """The factors of modules that stand one below the other in one: a block of each rank on the diagonal of `up`."""
    downs, ups = zip(*(factors[module] for module in modules), strict=True)
    up = np.zeros((sum(len(up) for up in ups), sum(up.shape[1] for up in ups)), np.float32)
    row = column = 0
    for part in ups:
        up[row : row + len(part), column : column + part.shape[1]] = part
        row, column = row + len(part), column + part.shape[1]
    return np.concatenate(downs), up


def added(tensors: Mapping[str, np.ndarray], factors: Factors, scale: float = 1.0) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint with what the factors add, in f64, rounded to f32."""
    result = dict(tensors)
    for module, (down, up) in factors.items():
        base = result[f"{module}.weight"]
        delta = scale * up.astype(np.float64) @ down.astype(np.float64)
        result[f"{module}.weight"] = (base.astype(np.float64) + delta.reshape(base.shape)).astype(np.float32)
    return result
