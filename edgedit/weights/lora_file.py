"""What a LoRA file [Hu et al. 2021] holds: for each module two factors and a scale, under the spellings in use.

    W' = W + scale * up @ down        W [N, K], down [r, K], up [N, r], scale = alpha / r, or 1 where no alpha is known

diffusers and PEFT write `lora_A`, `lora_B` (earlier `lora.down`, `lora.up`) and, lately, alpha in a config; kohya's
scripts write `lora_down`, `lora_up` and `alpha` as tensors.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgedit.errors import CheckpointError
from edgedit.weights.checkpoint import listing
from edgedit.weights.lora_config import LoraConfig, read_configs
from edgedit.weights.safetensors import SafetensorsFile

if TYPE_CHECKING:
    import numpy as np

DIRECTORY_NAMES = ("pytorch_lora_weights.safetensors", "adapter_model.safetensors")
FACTOR_TYPES = ("F64", "F32", "F16", "BF16")
ALPHA_TYPES = (*FACTOR_TYPES, "I32", "I64")
_FACTOR = re.compile(
    r"(?P<module>.+)\.(?:lora_(?P<letter>[AB])(?:\.(?!weight)[\w-]+)?|lora(?:_linear_layer)?[_.](?P<word>down|up))\.weight"
)
_ALPHA = ".alpha"
_KINDS = {
    "lora_magnitude_vector": "DoRA",
    "dora_scale": "DoRA",
    "hada_": "LoHa",
    "lokr_": "LoKr",
    "lora_embedding_": "LoRA of embeddings",
    "lora_mid": "LoCon with a middle factor",
    ".diff": "whole differences",
    ".bias": "biases",
}


@dataclass(frozen=True, slots=True)
class Factors:
    """The two factors of one module, not read yet.

    module  as the file spells it
    shape   of the weight that they change: [N, K], or [N, C, kh, kw] of a convolution
    scale   alpha / rank
    """

    module: str
    file: SafetensorsFile
    down_key: str
    up_key: str
    shape: tuple[int, ...]
    rank: int
    scale: float

    def down(self) -> np.ndarray:
        """f32 [r, K], a convolution's kernel flattened."""
        return self._read(self.down_key).reshape(self.rank, -1)

    def up(self) -> np.ndarray:
        """f32 [N, r], without the scale."""
        return self._read(self.up_key).reshape(self.shape[0], self.rank)

    def _read(self, key: str) -> np.ndarray:
        from edgedit.weights.convert import to_f32

        return to_f32(self.file.read(key), self.file.entries[key].dtype)


def read_lora(path: str | Path) -> list[Factors]:
    """The factors in a LoRA file, or in a directory with one as diffusers or PEFT save it. Reads headers and alphas.

    Raises:
        CheckpointError: for a file that is damaged, has tensors that belong to no pair of factors or factors that do
            not fit each other; names the first of them.
    """
    file = SafetensorsFile(_chosen(Path(path)))
    pairs, alphas = _sorted_keys(file)
    configs = read_configs(file, pairs)
    return [_factors(file, module, pair, alphas.get(module), configs) for module, pair in pairs.items()]


def _chosen(path: Path) -> Path:
    if not path.is_dir():
        if path.exists() and path.suffix != ".safetensors":
            raise CheckpointError(f"{path}: a LoRA must be a safetensors file")
        return path
    for name in DIRECTORY_NAMES:
        if (path / name).is_file():
            return path / name
    raise CheckpointError(f"{path}: holds no LoRA; looked for {', '.join(DIRECTORY_NAMES)}")


def _sorted_keys(file: SafetensorsFile) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Keys of down and up for each module, and of alphas. Raises unless every key has its place."""
    pairs: dict[str, dict[str, str]] = {}
    alphas, strange = {}, []
    for key in file.entries:
        if key.endswith(_ALPHA):
            alphas[key.removesuffix(_ALPHA)] = key
        elif match := _FACTOR.fullmatch(key):
            role = "down" if match["letter"] == "A" or match["word"] == "down" else "up"
            pair = pairs.setdefault(match["module"], {})
            if role in pair:
                raise CheckpointError(f"{file.path}: {pair[role]} and {key} are two {role} factors of one module")
            pair[role] = key
        else:
            strange.append(key)
    if strange:
        kinds = {kind for mark, kind in _KINDS.items() if any(mark in key for key in strange)}
        hint = f" ({', '.join(sorted(kinds))}, not supported)" if kinds else ""
        raise CheckpointError(
            f"{file.path}: {len(strange)} tensors are no factors of a LoRA{hint}: {listing(strange)}"
        )
    alone = [key for pair in pairs.values() if len(pair) == 1 for key in pair.values()]
    alone += [key for module, key in alphas.items() if module not in pairs]
    if alone:
        raise CheckpointError(f"{file.path}: {len(alone)} tensors lack their other factor: {listing(alone)}")
    if not pairs:
        raise CheckpointError(f"{file.path}: holds no LoRA")
    return pairs, alphas


def _factors(
    file: SafetensorsFile,
    module: str,
    pair: dict[str, str],
    alpha_key: str | None,
    configs: dict[str, LoraConfig],
) -> Factors:
    down, up = file.entries[pair["down"]], file.entries[pair["up"]]
    rank = down.shape[0] if down.shape else 0
    is_linear = len(down.shape) == len(up.shape) == 2
    is_convolution = len(down.shape) == len(up.shape) == 4 and up.shape[2:] == (1, 1)
    if not (is_linear or is_convolution) or rank == 0 or up.shape[1] != rank:
        raise CheckpointError(
            f"{file.path}: {down.name} {list(down.shape)} and {up.name} {list(up.shape)} are no pair of factors "
            "[r, K] and [N, r]"
        )
    for entry in (down, up):
        if entry.dtype not in FACTOR_TYPES:
            raise CheckpointError(
                f"{file.path}: {entry.name} has type {entry.dtype}; factors may be {', '.join(FACTOR_TYPES)}"
            )
    if alpha_key is None:
        scale = _config_of(module, configs).scale(module, rank, file.path)
    else:
        scale = _alpha(file, alpha_key) / rank
    return Factors(module, file, down.name, up.name, (up.shape[0], *down.shape[1:]), rank, scale)


def _config_of(module: str, configs: dict[str, LoraConfig]) -> LoraConfig:
    """The config whose prefix is the longest that `module` has; one without alpha where there is none."""
    fitting = [prefix for prefix in configs if module.startswith(prefix)]
    return configs[max(fitting, key=len)] if fitting else LoraConfig()


def _alpha(file: SafetensorsFile, key: str) -> float:
    from edgedit.weights.convert import to_f32

    entry = file.entries[key]
    if entry.dtype not in ALPHA_TYPES or math.prod(entry.shape) != 1:
        raise CheckpointError(f"{file.path}: {key} is {entry.dtype} {list(entry.shape)}; one number is needed")
    value = float(to_f32(file.read(key), entry.dtype).reshape(())[()])
    if not math.isfinite(value):
        raise CheckpointError(f"{file.path}: {key} is {value}")
    return value
