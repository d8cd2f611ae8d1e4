"""Convolutional operations on images [B, C, H, W]."""

from __future__ import annotations

from edgedit.graph._ggml import lib
from edgedit.graph.ops.attention import AttentionOps
from edgedit.graph.ops.checks import require, require_dtype, require_ndim
from edgedit.graph.tensor import Tensor

# Above this an im2col matrix costs more memory than its faster product is worth.
MAX_IM2COL_NBYTES = 256 << 20
GGML_SCALE_MODE_NEAREST = 0


class ImageOps(AttentionOps):
    def conv2d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int = 1,
        padding: int = 1,
        *,
        activation: str | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """residual + activation(x * weight + bias), of which x and weight are needed.

        x [B, C, H, W] with weight [O, C, kh, kw] and bias [O]: [B, O, H', W'], as the residual is.
        A product over im2col columns, or ggml's direct convolution where those would not fit a modest buffer.
        """
        require_ndim("conv2d", x, 4)
        require_ndim("conv2d", weight, 4)
        require_dtype("conv2d", x, "f32")
        require(x.shape[1] == weight.shape[1], "conv2d", "channel counts differ", x, weight)
        x = self.contiguous(x)
        batch, channels, height, width = x.shape
        filters, _, kernel_h, kernel_w = weight.shape
        shape = (
            batch,
            filters,
            (height + 2 * padding - kernel_h) // stride + 1,
            (width + 2 * padding - kernel_w) // stride + 1,
        )
        require(
            min(shape[2:]) > 0,
            "conv2d",
            f"the image is smaller than the kernel (padding {padding})",
            x,
            weight,
        )
        columns_nbytes = 4 * batch * shape[2] * shape[3] * channels * kernel_h * kernel_w
        function = lib.ggml_conv_2d if columns_nbytes <= MAX_IM2COL_NBYTES else lib.ggml_conv_2d_direct
        pointer = function(self._context, weight.pointer, x.pointer, stride, stride, padding, padding, 1, 1)
        y = self._emit(pointer, shape, "conv2d")
        if bias is not None:
            y = self.add(y, self.reshape(bias, (filters, 1, 1)))
        y = self.activate(y, activation)
        if residual is None:
            return y
        require(residual.shape == shape, "conv2d", "the residual must be as the result", residual, y)
        return self.add(residual, y)

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
