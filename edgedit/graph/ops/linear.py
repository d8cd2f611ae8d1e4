"""Products, embeddings and normalisations."""

from __future__ import annotations

from edgedit.graph._ggml import lib
from edgedit.graph.ops.checks import require, require_dtype, require_ndim
from edgedit.graph.ops.elementwise import ElementwiseOps
from edgedit.graph.ops.layout import LayoutOps
from edgedit.graph.tensor import Tensor


class LinearOps(ElementwiseOps, LayoutOps):
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., K] times weight [N, K] transposed, plus bias [N]: [..., N], accumulated in f32."""
        require_dtype("linear", x, "f32")
        require_ndim("linear", weight, 2)
        require(x.shape[-1] == weight.shape[1], "linear", "inner sizes differ", x, weight)
        pointer = lib.ggml_mul_mat(self._context, weight.pointer, x.pointer)
        y = self._emit(pointer, (*x.shape[:-1], weight.shape[0]), "linear")
        return y if bias is None else self.add(y, bias)

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

    def _affine(self, y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if weight is not None:
            y = self.mul(y, weight)
        return y if bias is None else self.add(y, bias)
