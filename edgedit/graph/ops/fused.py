"""Fused operators: one node where stock ggml needs several, and the choice between the two."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from edgedit import _native
from edgedit import kernels as families
from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.recorder import Recorder
from edgedit.graph.registry import MODES, OPERATORS
from edgedit.graph.tensor import Tensor, ne_of, tensor_array


class FusedOps(Recorder):
    """`ops` is "generic" for stock nodes only; else operators are fused wherever they take the arguments.

    kernels            family that linear, attention and conv2d are fused with; "ggml" for stock nodes there
    compute_dtype      type of the large weights
    quantised_compute  "int8" to multiply integers where weights are quantised, "exact" for what they stand for
    fusion_reasons     operator -> why its generic twin was taken, for the first time that it was

    Raises ValueError for words that are not known and for kernels that this processor cannot run.
    """

    def __init__(
        self,
        name: str = "graph",
        ops: str = "auto",
        kernels: str = "auto",
        compute_dtype: str = "f32",
        quantised_compute: str = "exact",
    ) -> None:
        super().__init__(name)
        if ops not in MODES:
            raise ValueError(f"ops is {ops!r}; legal: {', '.join(MODES)}")
        self.ops = "generic" if ops == "generic" else "fused"
        self.kernels = "ggml" if ops == "generic" else families.chosen(kernels)
        self.compute_dtype = compute_dtype
        self.quantised_compute = families.check_quantised_compute(quantised_compute)
        self.fusion_reasons: dict[str, str] = {}
        self._specs: list[Any] = []  # what the nodes' user data point to

    @property
    def activations(self) -> str:
        """Type for tensors that only feed products."""
        return families.activations(self.kernels, self.compute_dtype)

    def multiplies_int8(self, dtype: str) -> bool:
        """Whether `linear` multiplies integers where its weight has that type."""
        if self.quantised_compute != "int8" or self.kernels == "ggml":
            return False
        return _native.kernels.has_int8(self.kernels, _ggml.TYPE_IDS[dtype])

    def fuses(self, name: str, *facts: Any, why_not: str | None = None) -> bool:
        """True when operator `name` is to be used on arguments of these facts, which no rank sees differently.

        `why_not` is a reason against it that the caller knows.
        """
        if self.ops == "generic" or (OPERATORS[name].needs_kernels and self.kernels == "ggml"):
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
