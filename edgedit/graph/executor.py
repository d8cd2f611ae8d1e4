"""Runs a planned graph by the graph-cut path: segments through ggml, collectives through process groups."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgedit.errors import EdgeditError, GgmlError
from edgedit.graph._ggml import lib
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.collective import Collective
from edgedit.graph.counters import COUNTERS
from edgedit.graph.dispatch import operand_counts, start
from edgedit.graph.planner import plan
from edgedit.graph.schedule import Segment, Start, Wait
from edgedit.graph.tensor import Tensor
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.context import ParallelContext
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.work import Work

_NUMPY_TYPES = {"f32": np.float32, "f16": np.float16, "i32": np.int32}


# Kinds whose counts may differ from peer to peer; those of the others follow from the compared total.
PER_PEER_KINDS = ("all_to_all", "ring_shift", "all_gather")


@dataclass(slots=True)
class RunTimes:
    """Seconds of the last run: inside ggml, and waiting for collectives."""

    compute_s: float = 0.0
    wait_s: float = 0.0


class Executor:
    """A graph that was planned, agreed with the other ranks and allocated once, ready to run again and again.

    All nodes stand in one ggml graph under one allocator; a segment is a view of it. The allocator sees the start
    and wait nodes of each collective, so it keeps send tensors and receive buffers for as long as they are needed.

    context  the parallel state; every rank of a group builds the same executor in the same order
    degree   ranks that share this graph's work; more than 1 without any collective is an error

    Raises EdgeditError on every rank when the ranks' schedules differ, GgmlError when memory cannot be had.
    """

    def __init__(
        self, builder: GraphBuilder, backend: CpuBackend, context: ParallelContext, *, degree: int = 1
    ) -> None:
        self.name = builder.name
        self.times = RunTimes()
        self._builder = builder
        self._backend = backend
        self._groups: dict[str, ProcessGroup] = {}
        self._leaf_buffer = self._allocator = self._graph_context = None
        outputs = [tensor.node for tensor in builder.outputs.values() if tensor.node is not None]
        self.schedule = plan(builder.nodes, builder.collectives, outputs, degree=degree)
        self._agree(context)
        self._allocate()
        self._segments = {
            step.index: lib.ggml_graph_view(self._graph, step.begin, step.end)
            for step in self.schedule.segments
        }
        self._buffers = [self._buffers_of(collective) for collective in builder.collectives]
        COUNTERS.graphs_compiled += 1

    # preparation

    def _agree(self, context: ParallelContext) -> None:
        for axis in self.schedule.axes:
            group = self._groups[axis] = context.group(axis)
            context.agree(f"schedule of {self.name}", self.schedule.signature_of(axis), axis=axis)
            self._agree_on_counts(axis, group)

    def _agree_on_counts(self, axis: str, group: ProcessGroup) -> None:
        """What each rank means to send to a peer must be what that peer expects from it."""
        collectives = [c for c in self.schedule.collectives if c.axis == axis and c.kind in PER_PEER_KINDS]
        sent = np.array([c.send_counts for c in collectives], np.int64).T.copy()  # [size, collectives]
        announced = np.empty_like(sent)
        per_peer = [len(collectives)] * group.size
        label = f"counts of {self.name}"
        group.all_to_all(Buffer.of(sent), Buffer.of(announced), per_peer, per_peer, label=label)
        expected = np.array([c.recv_counts for c in collectives], np.int64).T
        wrong = np.argwhere(announced != expected)
        lines = [
            f"{collectives[column].name}: rank {group.ranks[peer]} sends {announced[peer, column]} elements to rank "
            f"{group.ranks[group.rank]}, which expects {expected[peer, column]}"
            for peer, column in wrong[:1]
        ]
        self._fail_together(group, lines, label)

    def _fail_together(self, group: ProcessGroup, lines: list[str], label: str) -> None:
        failed = np.array([len(lines)], np.int64)
        total = np.empty_like(failed)
        group.all_reduce(Buffer.of(failed), Buffer.of(total), label=label)
        if total[0]:
            raise EdgeditError(
                "; ".join(lines) or f"{label}: a rank of the group found counts that do not match"
            )

    def _allocate(self) -> None:
        builder = self._builder
        self._leaf_buffer = lib.ggml_backend_alloc_ctx_tensors(builder._leaf_context, self._backend.pointer)
        if not self._leaf_buffer and any(t.count for t in builder.inputs.values()):
            raise GgmlError(f"graph {self.name!r}: no memory for its inputs and constants")
        for tensor, values in builder.constants:
            _store(tensor, values)
        self._graph = lib.ggml_new_graph_custom(
            builder._context, len(builder.nodes) + _leaf_count(builder), False
        )
        for position, index in enumerate(self.schedule.order):
            lib.ggml_build_forward_expand(self._graph, builder.pointers[index])
            built = lib.ggml_graph_n_nodes(self._graph)
            assert built == position + 1, (
                f"node {builder.nodes[index].name} pulled in {built - position} nodes"
            )
        self._allocator = lib.ggml_gallocr_new(self._backend.buffer_type)
        if not lib.ggml_gallocr_alloc_graph(self._allocator, self._graph):
            raise GgmlError(
                f"graph {self.name!r}: no memory for about {self.schedule.peak_nbytes / 2**20:.0f} MiB of activations"
            )
        COUNTERS.buffers_allocated += 2

    def _buffers_of(self, collective: Collective) -> tuple[Buffer, Buffer]:
        sent, received = operand_counts(collective)
        send, receive = (self._builder.pointers[i].contents for i in (collective.send, collective.start))
        return (
            Buffer(send.data or 0, sent, collective.dtype, owner=self),
            Buffer(receive.data or 0, received, collective.dtype, owner=self),
        )

    @property
    def compute_nbytes(self) -> int:
        """Bytes that ggml's allocator took for the activations."""
        return lib.ggml_gallocr_get_buffer_size(self._allocator, 0)

    # running

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Set every input, run all segments and collectives, return the outputs by name.

        Raises ValueError for missing, unknown or misshapen inputs, CollectiveError when a collective fails.
        """
        self._set_inputs(inputs)
        self.times = times = RunTimes()
        flights: dict[int, Work] = {}
        for step in self.schedule.steps:
            began = time.perf_counter()
            if isinstance(step, Segment):
                self._compute(step)
                for work in flights.values():
                    work.is_done()  # lets the transport move bytes that wait for it
                times.compute_s += time.perf_counter() - began
            elif isinstance(step, Start):
                flights[step.collective] = self._start(step.collective)
            elif isinstance(step, Wait):
                flights.pop(step.collective).wait()
                times.wait_s += time.perf_counter() - began
        COUNTERS.runs += 1
        return {name: _load(tensor) for name, tensor in self._builder.outputs.items()}

    def _set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        expected = self._builder.inputs
        if inputs.keys() != expected.keys():
            raise ValueError(f"graph {self.name!r} takes inputs {sorted(expected)}, got {sorted(inputs)}")
        for name, tensor in expected.items():
            values = np.asarray(inputs[name])
            if values.shape != tensor.shape:
                raise ValueError(f"input {name!r} must be {list(tensor.shape)}, got {list(values.shape)}")
            _store(tensor, values)

    def _compute(self, segment: Segment) -> None:
        view = self._segments[segment.index]
        status = lib.ggml_backend_graph_compute(self._backend.pointer, ctypes.pointer(view))
        if status != lib.GGML_STATUS_SUCCESS:
            raise GgmlError(f"graph {self.name!r}: ggml ended segment {segment.index} with status {status}")

    def _start(self, index: int) -> Work:
        collective = self.schedule.collectives[index]
        return start(collective, self._groups[collective.axis], *self._buffers[index])

    def close(self) -> None:
        """Free the graph and its buffers; safe to call twice."""
        if self._allocator:
            lib.ggml_gallocr_free(self._allocator)
            self._allocator = None
        if self._leaf_buffer:
            lib.ggml_backend_buffer_free(self._leaf_buffer)
            self._leaf_buffer = None
        if self._graph_context:
            lib.ggml_free(self._graph_context)
            self._graph_context = None
        self._builder.release()

    def __del__(self) -> None:
        self.close()


def _leaf_count(builder: GraphBuilder) -> int:
    return len(builder.inputs) + len(builder.constants) + len(builder._parameters)


def _store(tensor: Tensor, values: np.ndarray) -> None:
    values = np.ascontiguousarray(values, _NUMPY_TYPES[tensor.dtype])
    if values.nbytes:
        lib.ggml_backend_tensor_set(tensor.pointer, values.ctypes.data, 0, values.nbytes)


def _load(tensor: Tensor) -> np.ndarray:
    values = np.empty(tensor.shape, _NUMPY_TYPES[tensor.dtype])
    if values.nbytes:
        lib.ggml_backend_tensor_get(tensor.pointer, values.ctypes.data, 0, values.nbytes)
    return values
