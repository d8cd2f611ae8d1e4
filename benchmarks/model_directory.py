"""The random model that every contender reads: a diffusers directory, and the inputs of its steps."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import safetensors_file

from edgedit.models.flux import FluxConfig, FluxNetwork
from edgedit.models.random_flux import SIZES, RandomCheckpoint, random_request

# Shifts, scales and gates of order 1, as trained ones are: near zero, an error inside a block would never show.
_MODULATION_BIAS = re.compile(r"norm\w*\.linear\.bias$")
MODULATION_DEVIATION = 0.7
_CHECKPOINT_DEVIATION = 0.1  # of biases in RandomCheckpoint


def write_model(folder: Path, name: str) -> Path:
    """A random transformer of one of SIZES as `folder/model`, in F32."""
    config = SIZES[name].config
    directory = folder / "model"
    directory.mkdir()
    fields = {**asdict(config), "_class_name": "FluxTransformer2DModel"}
    (directory / "config.json").write_text(json.dumps(fields))
    _write_weights(directory / "diffusion_pytorch_model.safetensors", config)
    return directory


def write_requests(folder: Path, name: str, count: int) -> list[Path]:
    """Inputs of `count` steps over the same tokens with different text, each a file of numpy arrays."""
    first = random_request(name)
    paths = []
    for seed in range(count):
        request = random_request(name, seed)
        request |= {key: first[key] for key in ("hidden_states", "timestep", "img_ids", "txt_ids")}
        paths.append(folder / f"request{seed}.npz")
        np.savez(paths[-1], **request)
    return paths


def describe(name: str) -> dict[str, int]:
    """What a record says about one of SIZES."""
    size = SIZES[name]
    return {
        "dim": size.config.dim,
        "heads": size.config.num_attention_heads,
        "double_blocks": size.config.num_layers,
        "single_blocks": size.config.num_single_layers,
        "image_tokens": size.rows * size.columns,
        "text_tokens": size.text_tokens,
    }


def read_request(path: str | Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def _write_weights(path: Path, config: FluxConfig) -> None:
    checkpoint = RandomCheckpoint(FluxNetwork(config))
    with path.open("wb") as file:
        tensors = {key: ("F32", checkpoint.shape(key)) for key in checkpoint}
        safetensors_file.write(file, tensors, (_drawn(checkpoint, key) for key in checkpoint))


def _drawn(checkpoint: RandomCheckpoint, key: str) -> np.ndarray:
    factor = MODULATION_DEVIATION / _CHECKPOINT_DEVIATION if _MODULATION_BIAS.search(key) else 1
    return checkpoint.read(key) * np.float32(factor)
