"""Convolutional operations on images [B, C, H, W]."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgedit import _native
from edgedit.dtypes import itemsize
from edgedit.graph._ggml import lib
from edgedit.graph.ops.attention import AttentionOps
from edgedit.graph.ops.checks import require, require_dtype, require_ndim
from edgedit.graph.ops.elementwise import check_activation
from edgedit.graph.tensor import Tensor

# Above this an im2col matrix costs more memory than its faster product is worth.
MAX_IM2COL_NBYTES = 256 << 20
GGML_SCALE_MODE_NEAREST = 0

Sides = tuple[int, int, int, int]  # above, below, left, right


@dataclass(frozen=True, slots=True)
class _Convolution:
    """The arguments of `conv2d`, checked."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    stride: int
    padding: Sides
    activation: str | None
    residual: Tensor | None

    def __post_init__(self) -> None:
        x, weight = self.x, self.weight
        require_ndim("conv2d", x, 4)
        require_ndim("conv2d", weight, 4)
        require_dtype("conv2d", x, "f32")
        require(x.shape[1] == weight.shape[1], "conv2d", "channel counts differ", x, weight)
        check_activation(self.activation)
        rule = f"the image is smaller than the kernel (padding {self.padding})"
        require(min(self.shape[2:]) >= (x.count > 0), "conv2d", rule, x, weight)
        if self.bias is not None:
            require_dtype("conv2d", self.bias, "f32")
            require(self.bias.shape == weight.shape[:1], "conv2d", "the bias must be [O]", self.bias, weight)
        if self.residual is not None:
            require_dtype("conv2d", self.residual, "f32")
            fits = self.residual.shape == self.shape
            require(fits, "conv2d", f"the residual must be {list(self.shape)}", self.residual)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        batch, _, height, width = self.x.shape
        filters, _, kernel_h, kernel_w = self.weight.shape
        above, below, left, right = self.padding
        return (
            batch,
            filters,
            (height + above + below - kernel_h) // self.stride + 1,
            (width + left + right - kernel_w) // self.stride + 1,
        )

    @property
    def inner(self) -> int:
        """Products that add up to one element."""
        return math.prod(self.weight.shape[1:])

    @property
    def flops(self) -> int:
        follow = sum(x is not None for x in (self.bias, self.activation, self.residual))
        return math.prod(self.shape) * (2 * self.inner + follow)


class ImageOps(AttentionOps):
    def conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int = 1,
        padding: int | Sides = 1,
        *,
        activation: str | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """residual + activation(x * weight + bias), of which x and weight are needed.

        x [B, C, H, W] with weight [O, C, kh, kw] and bias [O]: [B, O, H', W'], as the residual is. `padding` is that
        of all sides, or of each: above, below, left, right.
        """
        sides = (padding,) * 4 if isinstance(padding, int) else padding
        convolution = _Convolution(x, weight, bias, stride, sides, activation, residual)
        if not x.count:
            return self.empty(convolution.shape)
        are_leaves = weight.node is None and (bias is None or bias.node is None)
        if self.fuses("conv2d", weight.dtype, are_leaves):
            return self._conv2d_node(convolution)
        return self._stock_conv2d(convolution)

    def _conv2d_node(self, of: _Convolution) -> Tensor:
        """By a kernel, in one node."""
        sources = [of.x if of.x.strides[-1] == itemsize("f32") else self.contiguous(of.x)]
        if of.residual is not None:
            sources.append(self.contiguous(of.residual))
        spec = _native.ops.Conv2dSpec(
            family=self.kernels,
            weight=of.weight.tensor_address,
            bias=0 if of.bias is None else of.bias.tensor_address,
            activation=of.activation,
            stride=of.stride,
            padding=of.padding,
            has_residual=of.residual is not None,
        )
        return self._fused("conv2d", sources, of.shape, "f32", spec, of.flops)

    def _stock_conv2d(self, of: _Convolution) -> Tensor:
        """A product over im2col columns, or ggml's direct convolution where those would not fit a modest buffer."""
        x, stride = of.x, of.stride
        above, below, left, right = of.padding
        if above != below or left != right:
            x = self.pad(x, (0, 0, above, left), (0, 0, below, right))
            above = left = 0
        x = self.contiguous(x)
        columns_nbytes = itemsize("f32") * of.inner * math.prod(of.shape) // of.shape[1]
        function = lib.ggml_conv_2d if columns_nbytes <= MAX_IM2COL_NBYTES else lib.ggml_conv_2d_direct
        pointer = function(self._context, of.weight.pointer, x.pointer, stride, stride, left, above, 1, 1)
        y = self._emit(pointer, of.shape, "conv2d")
        if of.bias is not None:
            y = self.add(y, self.reshape(of.bias, (of.shape[1], 1, 1)))
        y = self.activate(y, of.activation)
        return y if of.residual is None else self.add(of.residual, y)

    def group_norm(
        self, x: Tensor, groups: int, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Normalise x [B, C, H, W] over each of `groups` channel groups [Wu and He 2018]."""
        require_ndim("group_norm", x, 4)
        channels = x.shape[1]
        require(channels % groups == 0, "group_norm", f"{channels} channels do not form {groups} groups", x)
        y = self._emit(lib.ggml_group_norm(self._context, x.pointer, groups, eps), x.shape, "group_norm")
        if weight is not None:
            y = self.mul(y, self.reshape(weight, (channels, 1, 1)))
        return y if bias is None else self.add(y, self.reshape(bias, (channels, 1, 1)))

    def upsample_nearest(self, x: Tensor, factor: int = 2) -> Tensor:
        """Each pixel repeated factor times in both directions: [B, C, H, W] -> [B, C, fH, fW]."""
        require_ndim("upsample_nearest", x, 4)
        batch, channels, height, width = x.shape
        pointer = lib.ggml_upscale(self._context, self.contiguous(x).pointer, factor, GGML_SCALE_MODE_NEAREST)
        return self._emit(pointer, (batch, channels, factor * height, factor * width), "upsample")
