"""Layers that several networks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.ops.collectives import Group
from edgedit.graph.ops.image import Sides
from edgedit.graph.tensor import Tensor
from edgedit.models.low_rank import LowRank
from edgedit.models.module import Module, Parameter


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring channels of which every rank may hold a share, in whole units; any for None."""

    channels: int
    unit: int | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """Who shares a layer, and how many channels each of them has."""

    group: Group
    channels: tuple[int, ...]


class Linear(Module):
    """[..., in_features] -> [..., out_features]; the keywords are those of `GraphBuilder.linear`.

    split  how ranks may share the weight, None where each needs all of it:
             columns   each has some channels of the result
             gathered  the same, but the result, [N, out_features], is gathered whole
             rows      each has some channels of the input; what it makes of them is summed over the ranks in f32 and
                       in their order, before anything else is added
    runs   of the channels that are shared, side by side; one by default

    An `adapter` adds to the product, before activation and gate.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        split: str | None = None,
        runs: Sequence[Run] = (),
    ) -> None:
        self.weight = Parameter((out_features, in_features), "linear")
        self.bias = Parameter((out_features,), "bias") if bias else None
        self.split = split
        self.runs = tuple(runs) or (Run(in_features if split == "rows" else out_features),)
        self.sharing: Sharing | None = None
        self.adapter: LowRank | None = None

    def adapt(self, rank: int) -> None:
        """Add an adapter of that rank, shared as the weight is; its factors are parameters of the layer from now on."""
        out_features, in_features = self.weight.shape
        self.adapter = LowRank(in_features, out_features, rank)
        if self.weight.part is not None:
            factor = self.adapter.up if self.weight.part.axis == 0 else self.adapter.down
            factor.part = self.weight.part

    def input_type(self, b: GraphBuilder) -> str:
        """Type that an input is best in which no other layer reads."""
        assert self.weight.tensor is not None, "a layer without weights reads nothing"
        reads_integers = self.adapter is None and b.multiplies_int8(self.weight.tensor.dtype)
        return "q8_0" if reads_integers else b.activations

    def forward(
        self,
        b: GraphBuilder,
        x: Tensor | Sequence[Tensor],
        *,
        activation: str | None = None,
        gate: Tensor | None = None,
        residual: Tensor | None = None,
        dtype: str = "f32",
    ) -> Tensor:
        weight, bias = self.weight.on(b), self.bias.on(b) if self.bias else None
        if self.sharing and self.split == "rows":
            own = b.linear(x, weight, residual=self.adapter(b, x) if self.adapter else None)
            summed = b.all_reduce("sum", own, self.sharing.group)
            y = b.after_product(summed, bias, activation=activation, gate=gate, residual=residual)
            return b.cast(y, dtype)
        if self.adapter and activation:
            y = b.linear(x, weight, bias, residual=self.adapter(b, x))
            y = b.cast(b.after_product(y, activation=activation, gate=gate, residual=residual), dtype)
        else:
            if self.adapter:
                residual = self.adapter(b, x, gate=gate, residual=residual)
            y = b.linear(x, weight, bias, activation=activation, gate=gate, residual=residual, dtype=dtype)
        return _gathered(b, y, self.sharing) if self.sharing and self.split == "gathered" else y


def _gathered(b: GraphBuilder, x: Tensor, sharing: Sharing) -> Tensor:
    """The channels of all ranks: [N, sum of sharing.channels] of x [N, own channels]."""
    columns = b.contiguous(b.permute(x, (1, 0)))
    whole = b.all_gather("columns", columns, sharing.group, sharing.channels)
    return b.contiguous(b.permute(whole, (1, 0)))


class Embedding(Module):
    """ids i32 [...] -> [..., dim]; `split` and `runs` as of `Linear`, which leaves "columns" or None."""

    def __init__(self, count: int, dim: int, *, split: str | None = None, runs: Sequence[Run] = ()) -> None:
        self.weight = Parameter((count, dim), "embedding")
        self.split = split
        self.runs = tuple(runs) or (Run(dim),)
        self.sharing: Sharing | None = None

    def forward(self, b: GraphBuilder, ids: Tensor) -> Tensor:
        return b.embedding(self.weight.on(b), ids)


class LayerNorm(Module):
    """Over the last axis; without weight and bias where `affine` is False."""

    def __init__(self, dim: int, eps: float, affine: bool = True) -> None:
        self.eps = eps
        self.weight = Parameter((dim,), "norm") if affine else None
        self.bias = Parameter((dim,), "norm") if affine else None

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        weight, bias = (p.on(b) if p else None for p in (self.weight, self.bias))
        return b.layer_norm(x, self.eps, weight, bias)


class RMSNorm(Module):
    """Over the last axis."""

    def __init__(self, dim: int, eps: float) -> None:
        self.eps = eps
        self.weight = Parameter((dim,), "norm")

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        return b.rms_norm(x, self.eps, self.weight.on(b))


class Conv2d(Module):
    """[B, in_channels, H, W] -> [B, out_channels, H', W']; the keywords are those of `GraphBuilder.conv2d`."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        stride: int = 1,
        padding: int | Sides = 0,
        bias: bool = True,
    ) -> None:
        self.stride = stride
        self.padding = padding
        self.weight = Parameter((out_channels, in_channels, kernel, kernel), "conv")
        self.bias = Parameter((out_channels,), "bias") if bias else None

    def forward(
        self, b: GraphBuilder, x: Tensor, *, activation: str | None = None, residual: Tensor | None = None
    ) -> Tensor:
        bias = self.bias.on(b) if self.bias else None
        weight = self.weight.on(b)
        return b.conv2d(x, weight, bias, self.stride, self.padding, activation=activation, residual=residual)
