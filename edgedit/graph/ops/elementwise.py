"""Arithmetic and activations, element by element."""

from __future__ import annotations

import math
from typing import Any

from edgedit.graph._ggml import lib
from edgedit.graph.ops.checks import require, require_dtype
from edgedit.graph.ops.fused import FusedOps
from edgedit.graph.tensor import Tensor

ACTIVATIONS = ("gelu", "gelu_erf", "gelu_quick", "silu", "relu")


def check_activation(activation: str | None) -> None:
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is none of {', '.join(ACTIVATIONS)}")


class ElementwiseOps(FusedOps):
    """x: any shape, f32. A second operand broadcasts to the first as in numpy."""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return self._binary("add", lib.ggml_add, x, y)

    def sub(self, x: Tensor, y: Tensor) -> Tensor:
        return self._binary("sub", lib.ggml_sub, x, y)

    def mul(self, x: Tensor, y: Tensor) -> Tensor:
        return self._binary("mul", lib.ggml_mul, x, y)

    def div(self, x: Tensor, y: Tensor) -> Tensor:
        return self._binary("div", lib.ggml_div, x, y)

    def scale(self, x: Tensor, factor: float, bias: float = 0.0) -> Tensor:
        """x * factor + bias."""
        if not x.is_contiguous or not x.is_padded_1d:  # ggml's scale asks for both
            x = self._emit(lib.ggml_cont(self._context, x.pointer), x.shape, "contiguous")
        return self._emit(lib.ggml_scale_bias(self._context, x.pointer, factor, bias), x.shape, "scale")

    def silu(self, x: Tensor) -> Tensor:
        return self._unary("silu", lib.ggml_silu, x)

    def gelu(self, x: Tensor) -> Tensor:
        """The tanh approximation, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), evaluated in f32.

        ggml's own GELU looks values up in an f16 table, too coarse for f32 results. With
        z = x p and p = 2 sqrt(2/pi) (1 + 0.044715 x^2) the formula is x sigmoid(z) = silu(z) / p,
        and ggml's SiLU is vectorised.
        """
        slope = 2.0 * math.sqrt(2.0 / math.pi)
        p = self.scale(self.mul(x, x), slope * 0.044715, slope)
        return self.div(self.silu(self.mul(x, p)), p)

    def gelu_erf(self, x: Tensor) -> Tensor:
        """The exact form, 0.5 x (1 + erf(x / sqrt 2))."""
        return self._unary("gelu_erf", lib.ggml_gelu_erf, x)

    def gelu_quick(self, x: Tensor) -> Tensor:
        """x sigmoid(1.702 x) = silu(1.702 x) / 1.702, evaluated in f32 (ggml's own goes through an f16 table)."""
        return self.scale(self.silu(self.scale(x, 1.702)), 1.0 / 1.702)

    def relu(self, x: Tensor) -> Tensor:
        return self._unary("relu", lib.ggml_relu, x)

    def activate(self, x: Tensor, activation: str | None) -> Tensor:
        """The function of that name, one of `ACTIVATIONS`; x itself for None."""
        check_activation(activation)
        result: Tensor = getattr(self, activation)(x) if activation else x
        return result

    def tanh(self, x: Tensor) -> Tensor:
        return self._unary("tanh", lib.ggml_tanh, x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return self._unary("sigmoid", lib.ggml_sigmoid, x)

    def sqrt(self, x: Tensor) -> Tensor:
        return self._unary("sqrt", lib.ggml_sqrt, x)

    def row_sums(self, x: Tensor) -> Tensor:
        """Over the last axis, on one thread: [..., C] -> [..., 1]."""
        require_dtype("row_sums", x, "f32")
        return self._emit(lib.ggml_sum_rows(self._context, x.pointer), (*x.shape[:-1], 1), "row_sums")

    def contiguous(self, x: Tensor) -> Tensor:
        """x itself when its elements already stand in order, else a packed copy."""
        if x.is_contiguous:
            return x
        return self._emit(lib.ggml_cont(self._context, x.pointer), x.shape, "contiguous")

    def _unary(self, name: str, function: Any, x: Tensor) -> Tensor:
        require_dtype(name, x, "f32")
        x = self.contiguous(x)
        return self._emit(function(self._context, x.pointer), x.shape, name)

    def _binary(self, name: str, function: Any, x: Tensor, y: Tensor) -> Tensor:
        require_dtype(name, x, "f32")
        require_dtype(name, y, "f32")
        padded = (1,) * (x.ndim - y.ndim) + y.shape
        fits = y.ndim <= x.ndim and all(b in (a, 1) for a, b in zip(x.shape, padded, strict=True))
        require(fits, name, "the second operand must broadcast to the first", x, y)
        return self._emit(function(self._context, x.pointer, y.pointer), x.shape, name)
