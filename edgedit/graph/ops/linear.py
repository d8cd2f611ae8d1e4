"""Products and embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from edgedit.graph._ggml import lib
from edgedit.graph.ops.checks import require, require_broadcast, require_dtype, require_ndim
from edgedit.graph.ops.norms import NormOps
from edgedit.graph.tensor import Tensor


class LinearOps(NormOps):
    def linear(
        self,
        x: Tensor | Sequence[Tensor],
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: str | None = None,
        gate: Tensor | None = None,
        residual: Tensor | None = None,
        dtype: str = "f32",
    ) -> Tensor:
        """residual + gate * activation(x W^T + bias), of which x and W are needed: [..., N], accumulated in f32.

        x           [..., K]; or several tensors whose last axes, side by side, are K
        weight      [N, K]
        bias        [N]
        activation  one of `ACTIVATIONS`
        gate        broadcasts to the result, with the same last axis
        residual    as the result
        dtype       of the result: "f32", or `activations` where it only feeds products
        """
        parts = [x] if isinstance(x, Tensor) else list(x)
        for part in parts:
            require_dtype("linear", part, "f32", "bf16")
            same = part.shape[:-1] == parts[0].shape[:-1]
            require(same, "linear", "inputs side by side must agree but for the last axis", *parts)
        require_ndim("linear", weight, 2)
        inner = sum(part.shape[-1] for part in parts)
        require(inner == weight.shape[1], "linear", "inner sizes differ", *parts, weight)
        shape = (*parts[0].shape[:-1], weight.shape[0])
        joined = self.concat([self.cast(part, "f32") for part in parts], -1)
        y = self._emit(lib.ggml_mul_mat(self._context, weight.pointer, joined.pointer), shape, "linear")
        if bias is not None:
            y = self.add(y, bias)
        y = self.activate(y, activation)
        if gate is not None:
            require_broadcast("linear", y, gate)
        if residual is not None:
            require(residual.shape == shape, "linear", "the residual must be as the result", residual, y)
            y = self.add(residual, y) if gate is None else self.gated_residual(residual, gate, y)
        elif gate is not None:
            y = self.mul(y, gate)
        return self.cast(y, dtype)

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """x [..., M, K] times y [..., N, K] transposed: [..., M, N]; leading axes of y divide those of x."""
        fits = x.ndim == y.ndim >= 2 and x.shape[-1] == y.shape[-1]
        pairs = zip(x.shape[:-2], y.shape[:-2], strict=False)
        fits = fits and all(b > 0 and a % b == 0 for a, b in pairs)
        require(fits, "matmul", "x [..., M, K] needs y [..., N, K]", x, y)
        if lib.ggml_is_transposed(y.pointer):  # also a permuted view of one column, although it is in order
            y = self._emit(lib.ggml_cont(self._context, y.pointer), y.shape, "matmul_operand")
        pointer = lib.ggml_mul_mat(self._context, y.pointer, x.pointer)
        return self._emit(pointer, (*x.shape[:-1], y.shape[-2]), "matmul")

    def embedding(self, table: Tensor, ids: Tensor) -> Tensor:
        """Rows of table [V, C] for ids (i32, any shape [...]): [..., C]."""
        require_ndim("embedding", table, 2)
        require_dtype("embedding", ids, "i32")
        flat = self.reshape(ids, (ids.count,))
        rows = self._emit(
            lib.ggml_get_rows(self._context, table.pointer, flat.pointer),
            (ids.count, table.shape[1]),
            "embedding",
        )
        return self.reshape(rows, (*ids.shape, table.shape[1]))
