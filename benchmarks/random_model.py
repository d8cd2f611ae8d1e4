"""FLUX models of known sizes with random weights, never zeros (zeros run too fast)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgedit.models.flux import FluxConfig, FluxNetwork, FluxTransformer
from edgedit.models.module import Parameter
from edgedit.parallel.context import ParallelContext
from edgedit.weights.loader import load

_MINI = FluxConfig(
    num_layers=2,
    num_single_layers=4,
    num_attention_heads=8,
    joint_attention_dim=512,
    pooled_projection_dim=256,
)
_TINY = FluxConfig(
    num_layers=1,
    num_single_layers=1,
    num_attention_heads=4,
    attention_head_dim=64,
    axes_dims_rope=(16, 24, 24),
    joint_attention_dim=64,
    pooled_projection_dim=64,
)

# name -> (config, image rows, image columns, text tokens)
MODELS = {"mini": (_MINI, 32, 32, 128), "tiny": (_TINY, 8, 8, 16)}


class RandomCheckpoint:
    """Looks like a checkpoint; every tensor is drawn when it is read."""

    path = Path("random")

    def __init__(self, network: FluxNetwork) -> None:
        self._parameters: dict[str, Parameter] = dict(network.named_parameters())

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def shape(self, key: str) -> tuple[int, ...]:
        return self._parameters[key].shape

    def dtype(self, key: str) -> str:
        return "F32"

    float_type = dtype

    def read(self, key: str) -> np.ndarray:
        shape = self.shape(key)
        values = np.random.default_rng(zlib.crc32(key.encode())).standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            return values * np.float32(0.1) + np.float32(key.endswith("weight"))
        return values / np.float32(np.sqrt(shape[-1]))

    as_f32 = read


def random_transformer(
    name: str, compute_dtype: str = "f32", threads: int = 1, context: ParallelContext | None = None
) -> FluxTransformer:
    """A loaded transformer of one of MODELS."""
    config = MODELS[name][0]
    network = FluxNetwork(config)
    weights = load(network, RandomCheckpoint(network), compute_dtype)  # type: ignore[arg-type]
    return FluxTransformer(config, network, weights, compute_dtype, threads, context)


def random_request(name: str, seed: int = 0) -> dict[str, Any]:
    """Keyword arguments of one forward pass."""
    config, rows, columns, text = MODELS[name]
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    row, column = np.indices((rows, columns)).reshape(2, -1)
    return {
        "hidden_states": draw(1, rows * columns, config.in_channels),
        "encoder_hidden_states": draw(1, text, config.joint_attention_dim),
        "pooled_projections": draw(1, config.pooled_projection_dim),
        "timestep": np.array([0.5], np.float32),
        "img_ids": np.stack([np.zeros_like(row), row, column], 1),
        "txt_ids": np.zeros((text, 3)),
    }
