"""Layers that several networks share."""

from __future__ import annotations

from collections.abc import Sequence

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.ops.image import Sides
from edgedit.graph.tensor import Tensor
from edgedit.models.module import Module, Parameter


class Linear(Module):
    """[..., in_features] -> [..., out_features]; the keywords are those of `GraphBuilder.linear`."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        self.weight = Parameter((out_features, in_features), "linear")
        self.bias = Parameter((out_features,), "bias") if bias else None

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
        return b.linear(
            x,
            self.weight.on(b),
            self.bias.on(b) if self.bias else None,
            activation=activation,
            gate=gate,
            residual=residual,
            dtype=dtype,
        )


class Embedding(Module):
    """ids i32 [...] -> [..., dim]."""

    def __init__(self, count: int, dim: int) -> None:
        self.weight = Parameter((count, dim), "embedding")

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


class GroupNorm(Module):
    """Over groups of channels of [B, C, H, W]."""

    def __init__(self, groups: int, channels: int, eps: float) -> None:
        self.groups = groups
        self.eps = eps
        self.weight = Parameter((channels,), "norm")
        self.bias = Parameter((channels,), "norm")

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        return b.group_norm(x, self.groups, self.eps, self.weight.on(b), self.bias.on(b))


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
