"""From nodes of a schedule to the steps of a `_cuda.Plan`: stock nodes as graph views, ours by name."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from edgedit import _native
from edgedit.errors import GgmlError
from edgedit.graph._ggml import lib
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.custom_nodes import parameters
from edgedit.graph.schedule import Schedule

OPERATORS = (
    "pack",
    "receive",
    "rope_table",
    "modulate",
    "gated_residual",
    "attention_partial",
    "attention_merge",
)
_VIEW_OPS = {
    lib.GGML_OP_NONE,
    lib.GGML_OP_VIEW,
    lib.GGML_OP_RESHAPE,
    lib.GGML_OP_PERMUTE,
    lib.GGML_OP_TRANSPOSE,
}


class Custom(NamedTuple):
    """A node of ours: which callback the CPU would call, with what."""

    function: int
    userdata: int

    @classmethod
    def of(cls, pointer: Any) -> Custom | None:
        """None for a stock node."""
        if pointer.contents.op != lib.GGML_OP_CUSTOM:
            return None
        function, _, userdata = parameters(pointer)
        return cls(function or 0, userdata or 0)


def operators() -> dict[int, str]:
    """Name of each fused operator by the address of its CPU callback: a graph names its operators by those."""
    return {getattr(_native.ops, name): name for name in OPERATORS}


def new_uid() -> int:
    """A number by which ggml recognises a graph it has seen before, without looking at every node."""
    function = lib.lib.ggml_graph_next_uid
    function.restype = ctypes.c_uint64
    return int(function())


def add_nodes(
    plan: Any, graph: Any, builder: GraphBuilder, schedule: Schedule, begin: int, end: int
) -> list[Any]:
    """Add the nodes at positions [begin, end) of the order to `plan`; returns the views, which must outlive it.

    Raises GgmlError for a custom node that has no CUDA operator.
    """
    names = operators()
    views: list[Any] = []

    def flush(first: int, last: int) -> None:
        nodes = (builder.pointers[schedule.order[position]] for position in range(first, last))
        if all(node.contents.op in _VIEW_OPS for node in nodes):
            return
        view = lib.ggml_graph_view(graph, first, last)
        view.uid = new_uid()
        views.append(view)
        plan.segment(ctypes.addressof(view))

    first = begin
    for position in range(begin, end):
        pointer = builder.pointers[schedule.order[position]]
        custom = Custom.of(pointer)
        if custom is None:
            continue
        flush(first, position)
        first = position + 1
        if custom.function == _native.no_operation:
            continue
        if custom.function not in names:
            node = builder.nodes[schedule.order[position]]
            raise GgmlError(f"graph {builder.name!r}: node {node.name} has no CUDA operator")
        plan.operation(names[custom.function], ctypes.addressof(pointer.contents), custom.userdata)
    flush(first, end)
    return views
