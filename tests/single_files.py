"""Tiny models in the layouts of single files: original names, prefixes, one file for all, GGUF, fp8.

The original names come from the package's own maps, which tests/parity compares with those of diffusers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from edgedit.weights.name_map import architecture

Tensors = Mapping[str, np.ndarray]
# Sizes from which a whole config can be told: what tensors do not tell is as in the published models.
TOLD_FLUX: dict[str, Any] = {
    "heads": 1,
    "head_dim": 128,
    "axes": (16, 56, 56),
    "num_layers": 1,
    "num_single_layers": 1,
    "text_encoder": {"hidden_size": 64, "num_attention_heads": 1},
    "vae": {"norm_num_groups": 32, "block_out_channels": [32, 64], "scaling_factor": 0.3611, "shift_factor": 0.1159},
}  # fmt: skip
PARTS = {  # prefixes in files that hold everything
    "transformer": ("flux", "model.diffusion_model."),
    "vae": ("autoencoder_kl", "vae."),
    "text_encoder": ("clip", "text_encoders.clip_l.transformer."),
    "text_encoder_2": ("t5", "text_encoders.t5xxl.transformer."),
}


def read_component(directory: Path) -> dict[str, np.ndarray]:
    """All tensors of a component, f32."""
    tensors: dict[str, np.ndarray] = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(path)
    return {key: values.astype(np.float32) for key, values in tensors.items()}


def original(kind: str, tensors: Tensors, spelling: str = "original") -> dict[str, np.ndarray]:
    """The tensors of a network under the names of a spelling."""
    written = {}
    for name, targets in architecture(kind).spelling(spelling).bind([]).sources(tensors).items():
        parts = []
        for target in targets:
            values = tensors[target.name]
            if target.swap:
                values = np.concatenate([values[len(values) // 2 :], values[: len(values) // 2]])
            parts.append(values.T if target.transpose else values)
        written[name] = np.concatenate(parts)
    assert sum(values.size for values in written.values()) == sum(values.size for values in tensors.values())
    return written


def prefixed(prefix: str, tensors: Tensors) -> dict[str, np.ndarray]:
    return {prefix + key: values for key, values in tensors.items()}


def all_in_one(directory: Path) -> dict[str, np.ndarray]:
    """A whole FLUX pipeline under the names of one file."""
    tensors = {}
    for part, (kind, prefix) in PARTS.items():
        own = read_component(directory / part)
        tensors |= prefixed(prefix, original(kind, own) if part in ("transformer", "vae") else own)
    return tensors


def write_gguf(path: Path, tensors: Tensors, dtype: str = "F16", kind: str = "flux") -> Path:
    """Matrices in a type, as far as their rows fill its blocks, the rest in f32, by the `gguf` library."""
    writer = gguf.GGUFWriter(path, kind)
    wanted = gguf.GGMLQuantizationType[dtype]
    for key, values in tensors.items():
        block = gguf.GGML_QUANT_SIZES[wanted][0]
        if values.ndim < 2 or values.shape[-1] % block:
            writer.add_tensor(key, np.ascontiguousarray(values))
        elif dtype == "F16":
            writer.add_tensor(key, values.astype(np.float16))
        else:
            writer.add_tensor(key, gguf.quantize(np.ascontiguousarray(values), wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_typed(path: Path, tensors: Mapping[str, tuple[np.ndarray, str]]) -> Path:
    """A safetensors file of arrays whose bytes are said to be of a type, such as uint8 of F8_E4M3."""
    header: dict[str, Any] = {}
    position = 0
    for key, (values, dtype) in tensors.items():
        span = [position, position + values.nbytes]
        header[key] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": span}
        position += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(np.ascontiguousarray(values).tobytes() for values, _ in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path
