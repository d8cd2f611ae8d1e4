"""Running a graph node by node, with the time of each: what a profiled run does instead of one call of ggml."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.collective import Collective
from edgedit.graph.node import Node
from edgedit.graph.schedule import Schedule, Segment
from edgedit.graph.tensor import TensorFields
from edgedit.parallel.timeline import COMPUTE, Timeline, clock
from edgedit.parallel.times import RunTimes

# ggml does nothing for these.
_NOT_COMPUTED = {
    lib.GGML_OP_NONE, lib.GGML_OP_VIEW, lib.GGML_OP_RESHAPE, lib.GGML_OP_PERMUTE, lib.GGML_OP_TRANSPOSE
}  # fmt: skip


class NodeByNode:
    """The nodes of an allocated graph, each as a view of its own.

    `abort` is what ggml asks after each node, as in `CpuBackend.compute`.
    """

    def __init__(
        self, builder: GraphBuilder, backend: CpuBackend, schedule: Schedule, graph: Any,
        abort: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self._name = builder.name
        self._backend = backend
        self._abort = abort
        self._nodes = [builder.nodes[index] for index in schedule.order]
        self._views = [lib.ggml_graph_view(graph, i, i + 1) for i in range(len(self._nodes))]
        self._fields = [_fields_of(builder.pointers[index]) for index in schedule.order]
        self._segment_of = {i: s.index for s in schedule.segments for i in range(s.begin, s.end)}
        self._facts: dict[int, Mapping[str, Any]] = {}

    def computed(self, segment: Segment) -> Iterator[int]:
        """Positions of the segment's nodes that take time."""
        for position in range(segment.begin, segment.end):
            if self._fields[position].op not in _NOT_COMPUTED:
                yield position

    def run(self, position: int) -> bool:
        """Compute one node; False if ggml was told to stop."""
        name = f"{self._name!r}, node {self._nodes[position].name}"
        return self._backend.compute(self._views[position], name, self._abort)

    def compute(self, position: int, times: RunTimes, timeline: Timeline) -> bool:
        """`run`, with the time counted as compute."""
        node = self._nodes[position]
        began = clock()
        finished = self.run(position)
        ended = clock()
        times.compute_s += ended - began
        timeline.add(COMPUTE, node.op, node.name, began, ended, self.facts(position))
        return finished

    def facts(self, position: int) -> Mapping[str, Any]:
        if position not in self._facts:
            facts = _facts_of(self._nodes[position], self._fields[position])
            self._facts[position] = {**facts, "segment": self._segment_of.get(position)}
        return self._facts[position]


def add_segment(timeline: Timeline, graph: str, segment: Segment, began: float) -> None:
    """A segment that began then and is over now; the slices of its nodes lie inside."""
    facts = {
        "graph": graph, "segment": segment.index, "nodes": segment.end - segment.begin, "flops": segment.flops
    }  # fmt: skip
    timeline.add(COMPUTE, "segment", f"segment {segment.index}", began, clock(), facts)


def add_exchange(
    timeline: Timeline, collective: Collective, part: str, begin_s: float, end_s: float, waited_s: float
) -> None:
    """Part of a collective: "start", "wait", or "pack" for operators that write to the peers."""
    kind = part if part == "pack" else collective.kind
    about = collective.name, part, collective.axis, collective.dtype, collective.bytes_sent
    timeline.add_exchange(kind, *about, begin_s, end_s, waited_s)


def _facts_of(node: Node, fields: TensorFields) -> dict[str, Any]:
    sources = [TensorFields.at(address) for address in fields.sources]
    return {
        "shape": list(node.shape),
        "dtype": node.dtype,
        "inputs": [_shown(source) for source in sources],
        "flops": node.flops,
        # weights of fused operators are no operands and not counted
        "nbytes": sum(_nbytes(tensor) for tensor in [fields, *sources]),
    }


def _fields_of(pointer: Any) -> TensorFields:
    return TensorFields.at(ctypes.addressof(pointer.contents))


def _shown(fields: TensorFields) -> str:
    shape = list(reversed(fields.shape))
    while len(shape) > 1 and shape[0] == 1:
        del shape[0]
    return f"{_ggml.TYPE_NAMES.get(fields.type, fields.type)}{shape}"


def _nbytes(fields: TensorFields) -> int:
    return lib.ggml_nbytes(ctypes.cast(fields.address, ctypes.POINTER(lib.ggml_tensor)))
