"""Fused operators: one node where stock ggml needs several, and the choice between the two."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from edgedit import _native
from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.ops.checks import require, require_dtype, require_ndim
from edgedit.graph.ops.collectives import CollectiveOps, tensor_array
from edgedit.graph.registry import MODES, OPERATORS
from edgedit.graph.tensor import Tensor, ne_of


class FusedOps(CollectiveOps):
    """`ops` is "generic" for stock nodes only; else operators are fused wherever they take the arguments.

    fusion_reasons  operator -> why its generic twin was taken, for the first time that it was
    """

    def __init__(self, name: str = "graph", ops: str = "auto") -> None:
        super().__init__(name)
        if ops not in MODES:
            raise ValueError(f"ops is {ops!r}; legal: {', '.join(MODES)}")
        self.ops = "generic" if ops == "generic" else "fused"
        self.fusion_reasons: dict[str, str] = {}
        self._specs: list[Any] = []  # what the nodes' user data point to
        self._rope_tables: dict[tuple[int, ...], Tensor] = {}

    def fuses(self, name: str, *facts: Any, why_not: str | None = None) -> bool:
        """True when operator `name` is to be used on arguments of these facts, which no rank sees differently.

        `why_not` is a reason against it that the caller knows.
        """
        if self.ops == "generic":
            return False
        reason = why_not or OPERATORS[name].supports(*facts)
        if reason:
            self.fusion_reasons.setdefault(name, reason)
        return reason is None

    def modulate(self, x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        """LayerNorm(x) (1 + scale) + shift over the last axis, as in adaLN [Peebles and Xie 2023].

        x [B, s, C]; scale and shift [B, 1, C], or any shape that broadcasts to x but for the last axis.
        """
        if not self.fuses("modulate", x.dtype, scale.dtype, shift.dtype):
            return self.add(self.mul(self.layer_norm(x, eps), self.scale(scale, 1.0, 1.0)), shift)
        _require_broadcast("modulate", x, scale, shift)
        spec = _native.ops.PointwiseSpec(eps)
        return self._fused("modulate", (x, scale, shift), x.shape, "f32", spec, flops=3 * x.count)

    def gated_residual(self, x: Tensor, gate: Tensor, update: Tensor) -> Tensor:
        """x + gate * update for x, update [B, s, C] and gate [B, 1, C]."""
        if not self.fuses("gated_residual", x.dtype, gate.dtype, update.dtype):
            return self.add(x, self.mul(update, gate))
        _require_broadcast("gated_residual", x, gate)
        require(x.shape == update.shape, "gated_residual", "x and update must have one shape", x, update)
        spec = _native.ops.PointwiseSpec()
        return self._fused("gated_residual", (x, gate, update), x.shape, "f32", spec, flops=2 * x.count)

    def rope_table(self, positions: Tensor, periods: Sequence[Tensor]) -> Tensor:
        """Cosine and sine of position / period: positions i32 [axes, s], one f32 [d_a / 2] each: [s, D / 2, 2].

        The same arguments give the same node, so that all blocks of a network share it.
        """
        require_ndim("rope_table", positions, 2)
        require_dtype("rope_table", positions, "i32")
        require(positions.shape[0] == len(periods), "rope_table", "one axis per periods", positions, *periods)
        for period in periods:
            require_ndim("rope_table", period, 1)
            require_dtype("rope_table", period, "f32")
        key = tuple(ctypes.addressof(x.pointer.contents) for x in (positions, *periods))
        if key not in self._rope_tables:
            pairs = sum(period.count for period in periods)
            shape = (positions.shape[1], pairs, 2)
            spec = _native.ops.RopeTableSpec(len(periods))
            table = self._fused("rope_table", (positions, *periods), shape, "f32", spec, math.prod(shape))
            self._rope_tables[key] = table
        return self._rope_tables[key]

    def _fused(
        self,
        name: str,
        sources: Sequence[Tensor],
        shape: tuple[int, ...],
        dtype: str,
        spec: Any,
        flops: int = 0,
        into: Tensor | None = None,
    ) -> Tensor:
        """Add a node of operator `name`; `into` is the buffer that it fills in place, if not a new one."""
        self._specs.append(spec)
        callback = ctypes.cast(OPERATORS[name].cpu, lib.ggml_custom_op_t)
        user_data = ctypes.c_void_p(spec.address)
        count, array, tasks = len(sources), tensor_array(*sources), lib.GGML_N_TASKS_MAX
        if into is None:
            type_id = _ggml.TYPE_IDS[dtype]
            pointer = lib.ggml_custom_4d(
                self._context, type_id, *ne_of(shape), array, count, callback, tasks, user_data
            )
        else:
            pointer = lib.ggml_custom_inplace(
                self._context, into.pointer, array, count, callback, tasks, user_data
            )
        return self._emit(pointer, shape, name, op=name, flops=flops)


def _require_broadcast(op: str, x: Tensor, *others: Tensor) -> None:
    for y in others:
        padded = (1,) * (x.ndim - y.ndim) + y.shape
        fits = y.ndim <= x.ndim and padded[-1] == x.shape[-1]
        fits = fits and all(b in (a, 1) for a, b in zip(x.shape, padded, strict=True))
        require(fits, op, f"{y.name} must broadcast to x, with the same last axis", x, y)
