"""What a step takes of timestep, guidance and pooled text alone: the adaLN vectors of every block.

They do not depend on the image. All steps of a request are computed at once, as products whose rows are
steps x batch: the weights behind them, a quarter of FLUX.1's, are read once for a request and not once a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.layers import Linear
from edgedit.models.module import Module
from edgedit.models.weight_residency import WeightsAhead

TIMESTEP_CHANNELS = 256


def timestep_channels(timestep: np.ndarray, batch: int) -> np.ndarray:
    """Sinusoidal channels [B, 256] of timesteps [B] from 0 to 1000: cosines first, then sines.

    The embedding of DDPM [Ho et al. 2020] as diffusers' Timesteps(256, flip_sin_to_cos=True) computes it.
    """
    timestep = np.asarray(timestep, np.float32).reshape(-1)
    if timestep.shape != (batch,):
        raise ValueError(
            f"timestep and guidance need one value per batch item ({batch}), got {timestep.size}"
        )
    half = TIMESTEP_CHANNELS // 2
    frequencies = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / half))
    angles = timestep[:, None] * frequencies[None]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


class TimestepEmbedding(Module):
    """[N, in_channels] -> [N, C]; added to `onto` where that is given."""

    def __init__(self, in_channels: int, dim: int) -> None:
        self.linear_1 = Linear(in_channels, dim)
        self.linear_2 = Linear(dim, dim)

    def forward(self, b: GraphBuilder, x: Tensor, onto: Tensor | None = None) -> Tensor:
        return self.linear_2(b, self.linear_1(b, x, activation="silu"), residual=onto)


class TimeTextEmbedding(Module):
    """The conditioning vector [N, C] from timestep, guidance (where the model has it) and pooled text."""

    def __init__(self, pooled_channels: int, dim: int, takes_guidance: bool = False) -> None:
        self.pooled_channels = pooled_channels
        self.timestep_embedder = TimestepEmbedding(TIMESTEP_CHANNELS, dim)
        self.guidance_embedder = TimestepEmbedding(TIMESTEP_CHANNELS, dim) if takes_guidance else None
        self.text_embedder = TimestepEmbedding(pooled_channels, dim)

    def forward(self, b: GraphBuilder, timestep: Tensor, guidance: Tensor | None, pooled: Tensor) -> Tensor:
        vec = self.timestep_embedder(b, timestep)
        if self.guidance_embedder is not None:
            assert guidance is not None
            vec = self.guidance_embedder(b, guidance, vec)
        return self.text_embedder(b, pooled, vec)


class Modulation(Module):
    """adaLN-Zero [Peebles and Xie 2023]: `count` vectors of `dim` channels from the conditioning vector.

    Its product stands in the graph of the conditioning; a step reads the vectors from `StepModulations`.
    """

    def __init__(self, dim: int, count: int) -> None:
        self.dim, self.count = dim, count
        self.linear = Linear(dim, count * dim, split="gathered")

    @property
    def channels(self) -> int:
        return self.dim * self.count

    def forward(self, b: GraphBuilder, vec: Tensor) -> Tensor:
        return self.linear(b, vec)  # [N, count * C]


class StepModulations:
    """The vectors of one step: `values` [B, 1, M] holds those of all `modulations` side by side."""

    def __init__(self, values: Tensor, modulations: Iterable[Modulation]) -> None:
        self.values = values
        self._begin: dict[Modulation, int] = {}
        end = 0
        for modulation in modulations:
            self._begin[modulation] = end
            end += modulation.channels
        assert end == values.shape[2], f"modulations of {end} channels in {values!r}"

    def of(self, b: GraphBuilder, modulation: Modulation) -> list[Tensor]:
        """Its vectors, [B, 1, C] each, as views."""
        begin, dim = self._begin[modulation], modulation.dim
        edges = range(begin, begin + modulation.channels, dim)
        return [b.slice(self.values, 2, edge, edge + dim) for edge in edges]


def conditioning_graph(
    b: GraphBuilder,
    embedding: TimeTextEmbedding,
    modulations: Iterable[tuple[str, Modulation]],
    rows: int,
    weights: WeightsAhead,
) -> None:
    """Build the graph from timesteps (and guidance) as sinusoidal channels and pooled text to the vectors.

    It has an output [rows, count * C] per modulation, in the order and under the names that come with them.
    """
    timestep = b.input("timestep", (rows, TIMESTEP_CHANNELS))
    guidance = b.input("guidance", (rows, TIMESTEP_CHANNELS)) if embedding.guidance_embedder else None
    pooled = b.input("pooled", (rows, embedding.pooled_channels))
    vec = b.silu(embedding(b, timestep, guidance, pooled))
    before = vec
    for name, modulation in modulations:
        weights.ready(modulation, before)
        with b.scope(name):
            before = b.output(name, modulation.forward(b, vec))
