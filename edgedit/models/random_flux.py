"""FLUX transformers of known sizes with random weights, to measure with: never zeros, which run too fast."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgedit.models.flux import FluxConfig, FluxTransformer
from edgedit.models.module import Module, Parameter
from edgedit.parallel.context import ParallelContext
from edgedit.weights.loader import load
from edgedit.weights.sources import TensorSource


@dataclass(frozen=True)
class Size:
    """A network and the tokens of one request."""

    config: FluxConfig
    rows: int  # of image tokens
    columns: int
    text_tokens: int

    @property
    def tokens(self) -> int:
        return self.rows * self.columns + self.text_tokens


def _config(double_blocks: int, single_blocks: int, heads: int, **fields: Any) -> FluxConfig:
    return FluxConfig(
        num_layers=double_blocks, num_single_layers=single_blocks, num_attention_heads=heads, **fields
    )


_SMALL_TEXT = {"joint_attention_dim": 512, "pooled_projection_dim": 256}
_TINY = {"attention_head_dim": 64, "axes_dims_rope": (16, 24, 24)}
_TINY_TEXT = {"joint_attention_dim": 64, "pooled_projection_dim": 64}

SIZES = {
    "mini": Size(_config(2, 4, 8, **_SMALL_TEXT), 32, 32, 128),
    "wide": Size(_config(1, 1, 24), 32, 32, 512),  # as wide as FLUX.1, two of its blocks
    "long": Size(_config(1, 2, 8, **_SMALL_TEXT), 64, 64, 512),  # as many tokens as FLUX.1 at 1024 pixels
    "tiny": Size(_config(1, 1, 4, **_TINY, **_TINY_TEXT), 8, 8, 16),
}


class RandomCheckpoint(TensorSource):
    """Tensors for a network, each drawn when it is read."""

    path = Path("random")
    metadata: Mapping[str, Any] = {}

    def __init__(self, network: Module) -> None:
        self._parameters: dict[str, Parameter] = dict(network.named_parameters())

    def _named(self) -> Collection[str]:
        return self._parameters

    def shape(self, key: str) -> tuple[int, ...]:
        return self._parameters[key].shape

    def dtype(self, key: str) -> str:
        return "F32"

    def read(self, key: str) -> np.ndarray:
        shape = self.shape(key)
        values = np.random.default_rng(zlib.crc32(key.encode())).standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            return values * np.float32(0.1) + np.float32(key.endswith("weight"))
        return values / np.float32(np.sqrt(shape[-1]))


def random_transformer(
    name: str,
    compute_dtype: str = "f32",
    threads: int | None = None,
    context: ParallelContext | None = None,
    quantised_compute: str = "exact",
) -> FluxTransformer:
    """A loaded transformer of one of SIZES, as `transformer_of`."""
    return transformer_of(SIZES[name].config, compute_dtype, threads, context, quantised_compute)


def transformer_of(
    config: FluxConfig,
    compute_dtype: str = "f32",
    threads: int | None = None,
    context: ParallelContext | None = None,
    quantised_compute: str = "exact",
) -> FluxTransformer:
    """A loaded transformer; every rank and every run draws the same weights."""
    context = context or ParallelContext()
    network = FluxTransformer.network_on(config, context.config, compute_dtype)
    weights = load(network, RandomCheckpoint(network), compute_dtype, kernels=context.config.kernels)
    return FluxTransformer(config, network, weights, compute_dtype, threads, context, quantised_compute)


def random_request(name: str, seed: int = 0) -> dict[str, Any]:
    """Keyword arguments of one forward pass."""
    size = SIZES[name]
    return request_of(size.config, size.rows, size.columns, size.text_tokens, seed=seed)


def request_of(
    config: FluxConfig, rows: int, columns: int, text_tokens: int, batch: int = 1, seed: int = 0
) -> dict[str, Any]:
    """Keyword arguments of one forward pass over `rows` x `columns` image tokens, drawn from a normal distribution."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    row, column = np.indices((rows, columns)).reshape(2, -1)
    request = {
        "hidden_states": draw(batch, rows * columns, config.in_channels),
        "encoder_hidden_states": draw(batch, text_tokens, config.joint_attention_dim),
        "pooled_projections": draw(batch, config.pooled_projection_dim),
        "timestep": np.full(batch, 0.5, np.float32),
        "img_ids": np.stack([np.zeros_like(row), row, column], 1),
        "txt_ids": np.zeros((text_tokens, 3)),
    }
    if config.guidance_embeds:
        request["guidance"] = np.full(batch, 3.5, np.float32)
    return request
