"""Normalisations, and what adaLN blocks do around them."""

from __future__ import annotations

from edgedit import _native
from edgedit.graph._ggml import lib
from edgedit.graph.ops.checks import require, require_broadcast
from edgedit.graph.ops.elementwise import ElementwiseOps
from edgedit.graph.ops.layout import LayoutOps
from edgedit.graph.tensor import Tensor


class NormOps(ElementwiseOps, LayoutOps):
    def layer_norm(
        self, x: Tensor, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """Normalise over the last axis [Ba et al. 2016], then scale by weight [C] and shift by bias [C]."""
        y = self._emit(lib.ggml_norm(self._context, x.pointer, eps), x.shape, "layer_norm")
        return self._affine(y, weight, bias)

    def rms_norm(self, x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
        """Divide by the root mean square of the last axis [Zhang and Sennrich 2019], then scale by weight [C]."""
        y = self._emit(lib.ggml_rms_norm(self._context, x.pointer, eps), x.shape, "rms_norm")
        return self._affine(y, weight, None)

    def modulate(self, x: Tensor, scale: Tensor, shift: Tensor, eps: float, dtype: str = "f32") -> Tensor:
        """LayerNorm(x) (1 + scale) + shift over the last axis, as in adaLN [Peebles and Xie 2023].

        x [B, s, C]; scale and shift [B, 1, C], or any shape that broadcasts to x but for the last axis. The result
        has type `dtype`.
        """
        if not self.fuses("modulate", x.dtype, scale.dtype, shift.dtype):
            y = self.add(self.mul(self.layer_norm(x, eps), self.scale(scale, 1.0, 1.0)), shift)
            return self.cast(y, dtype)
        require_broadcast("modulate", x.shape, scale, shift)
        spec = _native.ops.PointwiseSpec(eps)
        direct = "f32" if self.kernels == "ggml" else dtype  # the operator of a device writes f32 only
        y = self._fused("modulate", (x, scale, shift), x.shape, direct, spec, flops=3 * x.count)
        return self.cast(y, dtype)

    def gated_residual(self, x: Tensor, gate: Tensor, update: Tensor) -> Tensor:
        """x + gate * update for x, update [B, s, C] and gate [B, 1, C]."""
        if not self.fuses("gated_residual", x.dtype, gate.dtype, update.dtype):
            return self.add(x, self.mul(update, gate))
        require_broadcast("gated_residual", x.shape, gate)
        require(x.shape == update.shape, "gated_residual", "x and update must have one shape", x, update)
        spec = _native.ops.PointwiseSpec()
        return self._fused("gated_residual", (x, gate, update), x.shape, "f32", spec, flops=2 * x.count)

    def _affine(self, y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if weight is not None:
            y = self.mul(y, weight)
        return y if bias is None else self.add(y, bias)
