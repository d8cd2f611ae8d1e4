"""Adapters kept apart from the weights that they change (LoRA [Hu et al. 2021])."""

from __future__ import annotations

from collections.abc import Sequence

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.module import Module, Parameter


class LowRank(Module):
    """[..., in_features] -> [..., out_features] by way of `rank` channels; any scale stands in `up`."""

    def __init__(self, in_features: int, out_features: int, rank: int) -> None:
        self.down = Parameter((rank, in_features), "adapter")
        self.up = Parameter((out_features, rank), "adapter")

    def forward(
        self,
        b: GraphBuilder,
        x: Tensor | Sequence[Tensor],
        *,
        gate: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        return b.linear(b.linear(x, self.down.on(b)), self.up.on(b), gate=gate, residual=residual)
