"""Products and embeddings."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgedit import _native
from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.ops.checks import require, require_broadcast, require_dtype, require_ndim
from edgedit.graph.ops.elementwise import check_activation
from edgedit.graph.ops.norms import NormOps
from edgedit.graph.registry import PACKED_TYPES
from edgedit.graph.tensor import Tensor

_MAX_INPUTS = 2  # of a kernel
_MAX_LEVELS = 2  # in which its rows may be apart


@dataclass(frozen=True, slots=True)
class _Product:
    """The arguments of `linear`, checked."""

    parts: Sequence[Tensor]
    weight: Tensor
    bias: Tensor | None
    activation: str | None
    gate: Tensor | None
    residual: Tensor | None

    def __post_init__(self) -> None:
        first = self.parts[0]
        for part in self.parts:
            require_dtype("linear", part, "f32", "bf16", "q8_0")
            same = part.shape[:-1] == first.shape[:-1]
            require(same, "linear", "inputs side by side must agree but for the last axis", *self.parts)
        require_ndim("linear", self.weight, 2)
        inner = sum(part.shape[-1] for part in self.parts)
        require(inner == self.weight.shape[1], "linear", "inner sizes differ", *self.parts, self.weight)
        check_activation(self.activation)
        for x in (self.bias, self.gate, self.residual):
            if x is not None:
                require_dtype("linear", x, "f32")
        if self.bias is not None:
            fits = self.bias.shape == self.shape[-1:]
            require(fits, "linear", "the bias must be [N]", self.bias, self.weight)
        if self.gate is not None:
            require_broadcast("linear", self.shape, self.gate)
        if self.residual is not None:
            fits = self.residual.shape == self.shape
            require(fits, "linear", f"the residual must be {list(self.shape)}", self.residual)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return (*self.parts[0].shape[:-1], self.weight.shape[0])

    @property
    def flops(self) -> int:
        follow = (self.bias, self.activation, self.gate, self.residual)
        return math.prod(self.shape) * (2 * self.weight.shape[1] + sum(x is not None for x in follow))


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

        x           [..., K], f32, bf16 or q8_0; or several tensors whose last axes, side by side, are K
        weight      [N, K]
        bias        [N]
        activation  one of `ACTIVATIONS`
        gate        broadcasts to the result, with the same last axis
        residual    as the result
        dtype       of the result: "f32", or `activations` where it only feeds products, or "q8_0" where these all
                    multiply integers (`multiplies_int8`)
        """
        parts = [x] if isinstance(x, Tensor) else list(x)
        product = _Product(parts, weight, bias, activation, gate, residual)
        fills = product.shape[-1] % _ggml.block_size(dtype) == 0
        require(fills, "linear", f"blocks of {dtype} do not fill the rows of the result", weight)
        are_leaves = (weight.node is None or weight.is_gathered) and (bias is None or bias.node is None)
        if self.fuses("linear", self.kernels, weight.dtype, weight.packed, are_leaves):
            return self._linear_node(product, dtype)
        return self.cast(self._stock_linear(product), dtype)

    def _stock_linear(self, product: _Product) -> Tensor:
        """By ggml's nodes, in f32."""
        weight = product.weight
        require(weight.packed is None, "linear", f"only kernels {weight.packed} can read this weight", weight)
        x = self.concat([self.cast(part, "f32") for part in product.parts], -1)
        pointer = lib.ggml_mul_mat(self._context, weight.pointer, x.pointer)
        y = self._emit(pointer, product.shape, "linear")
        return self.after_product(
            y, product.bias, activation=product.activation, gate=product.gate, residual=product.residual
        )

    def after_product(
        self,
        y: Tensor,
        bias: Tensor | None = None,
        *,
        activation: str | None = None,
        gate: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """What `linear` does with a product y [..., N] that is there already, in f32; arguments as there."""
        if bias is not None:
            y = self.add(y, bias)
        y = self.activate(y, activation)
        if residual is not None:
            return self.add(residual, y) if gate is None else self.gated_residual(residual, gate, y)
        return y if gate is None else self.mul(y, gate)

    def _linear_node(self, product: _Product, dtype: str) -> Tensor:
        """By a kernel, in one node."""
        weight, bias, parts = product.weight, product.bias, product.parts
        compute = self._compute_with(weight)
        if len(parts) > _MAX_INPUTS or compute != "int8":
            parts = [self.cast(part, "f32") if part.dtype == "q8_0" else part for part in parts]
        if len(parts) > _MAX_INPUTS:
            common = parts[0].dtype if len({part.dtype for part in parts}) == 1 else "f32"
            parts = [self.concat([self.cast(part, common) for part in parts], -1)]
        follow = [x for x in (product.gate, product.residual) if x is not None]
        sources = [self._walkable(x, product.shape[:-1]) for x in (*parts, *follow)]
        if weight.is_gathered:  # the kernel has its address, but what brings it must come first and its memory last
            sources.append(weight)
        type_id = _ggml.TYPE_IDS[weight.dtype]
        spec = _native.ops.LinearSpec(
            family=self.kernels,
            weight=weight.tensor_address,
            type=type_id,
            columns=weight.shape[0],
            inner=weight.shape[1],
            to_float=0 if weight.dtype in PACKED_TYPES else _decoder(type_id),
            bias=0 if bias is None else bias.tensor_address,
            compute=compute,
            activation=product.activation,
            num_inputs=len(parts),
            has_gate=product.gate is not None,
            has_residual=product.residual is not None,
        )
        return self._fused("linear", sources, product.shape, dtype, spec, product.flops)

    def _compute_with(self, weight: Tensor) -> str:
        if weight.dtype == "f32":
            return "f32"
        return "int8" if self.multiplies_int8(weight.dtype) else "bf16"

    def _walkable(self, x: Tensor, leading: tuple[int, ...]) -> Tensor:
        """x, or a packed copy where a kernel could not walk its rows."""
        is_dense = x.strides[-1] == _ggml.row_nbytes(x.dtype, _ggml.block_size(x.dtype))
        if is_dense and x.row_levels(leading) <= _MAX_LEVELS:
            return x
        return self.cast(x, "f32") if x.dtype == "q8_0" else self.contiguous(x)

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


def _decoder(type_id: int) -> int:
    """Address of ggml's function from quantised blocks to f32."""
    to_float = lib.ggml_get_type_traits(type_id).contents.to_float
    return ctypes.cast(to_float, ctypes.c_void_p).value or 0
