"""Fused operators: one node where stock ggml needs several, and the choice between the two."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.recorder import Recorder
from edgedit.graph.registry import MODES, OPERATORS
from edgedit.graph.tensor import Tensor, ne_of, tensor_array


class FusedOps(Recorder):
    """`ops` is "generic" for stock nodes only; else operators are fused wherever they take the arguments.

    activations     type for tensors that only feed products
    fusion_reasons  operator -> why its generic twin was taken, for the first time that it was
    """

    activations = "f32"

    def __init__(self, name: str = "graph", ops: str = "auto") -> None:
        super().__init__(name)
        if ops not in MODES:
            raise ValueError(f"ops is {ops!r}; legal: {', '.join(MODES)}")
        self.ops = "generic" if ops == "generic" else "fused"
        self.fusion_reasons: dict[str, str] = {}
        self._specs: list[Any] = []  # what the nodes' user data point to

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
