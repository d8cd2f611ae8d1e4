"""Plans a graph, agrees on it with the other ranks, allocates it once, and runs it again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgedit.errors import EdgeditError, GgmlError
from edgedit.graph._ggml import lib
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.counters import COUNTERS
from edgedit.graph.graph_cut import GraphCutRunner
from edgedit.graph.in_graph import InGraphRunner
from edgedit.graph.planner import plan
from edgedit.graph.runner import Runner
from edgedit.graph.tensor import Tensor
from edgedit.parallel.context import ParallelContext
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.timeline import REQUEST, Timeline, clock
from edgedit.parallel.times import RunTimes

_NUMPY_TYPES = {"f32": np.float32, "f16": np.float16, "i32": np.int32}


# Kinds whose counts may differ from peer to peer; those of the others follow from the compared total.
PER_PEER_KINDS = ("all_to_all", "ring_shift", "all_gather")


class Executor:
    """A graph that was planned, agreed with the other ranks and allocated once, ready to run again and again.

    All nodes stand in one ggml graph under one allocator, which sees the start and wait nodes of each collective and
    keeps send tensors and receive buffers for as long as they are needed. The context says how the schedule runs:
    cut at its collectives, or whole with native code behind its collective nodes.

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
        self._context = context
        self._groups: dict[str, ProcessGroup] = {}
        self._leaf_buffer = self._allocator = self._graph_context = None
        self._runner: Runner | None = None
        outputs = [tensor.node for tensor in builder.outputs.values() if tensor.node is not None]
        self.schedule = plan(builder.nodes, builder.collectives, outputs, degree=degree)
        self._agree(context)
        self._runner = self._runner_for(context)
        self._runner.place()
        self._allocate()
        self._runner.connect(self._graph)
        COUNTERS.graphs_compiled += 1

    # preparation

    def _agree(self, context: ParallelContext) -> None:
        for axis in self.schedule.axes:
            group = self._groups[axis] = context.group(axis)
            context.agree(f"schedule of {self.name}", self.schedule.signature_of(axis), axis=axis)
            self._agree_on_counts(axis, group)

    def _runner_for(self, context: ParallelContext) -> Runner:
        parts = (self._builder, self._backend, self.schedule, self._groups)
        if context.config.comm == "in-graph":
            return InGraphRunner(*parts, context)
        return GraphCutRunner(*parts)

    def _agree_on_counts(self, axis: str, group: ProcessGroup) -> None:
        """What each rank means to send to a peer must be what that peer expects from it."""
        collectives = [c for c in self.schedule.collectives if c.axis == axis and c.kind in PER_PEER_KINDS]
        if not collectives:
            return
        sent = np.array([c.send_counts for c in collectives], np.int64).T.copy()  # [size, collectives]
        label = f"counts of {self.name}"
        tables = [np.frombuffer(data, np.int64) for data in group.exchange(sent.tobytes(), label=label)]
        announced = np.stack([table.reshape(sent.shape)[group.rank] for table in tables])
        expected = np.array([c.recv_counts for c in collectives], np.int64).T
        wrong = np.argwhere(announced != expected)
        lines = [
            f"{collectives[column].name}: rank {group.ranks[peer]} sends {announced[peer, column]} elements to rank "
            f"{group.ranks[group.rank]}, which expects {expected[peer, column]}"
            for peer, column in wrong[:1]
        ]
        self._fail_together(group, lines, label)

    def _fail_together(self, group: ProcessGroup, lines: list[str], label: str) -> None:
        if any(group.exchange(b"wrong" if lines else b"", label=label)):
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
        size = len(builder.nodes) + _leaf_count(builder)
        self._graph_context = lib.ggml_init(
            lib.ggml_init_params(lib.ggml_graph_overhead_custom(size, False), mem_buffer=None, no_alloc=True)
        )
        self._graph = lib.ggml_new_graph_custom(self._graph_context, size, False)
        for position, index in enumerate(self.schedule.order):
            lib.ggml_build_forward_expand(self._graph, builder.pointers[index])
            built = lib.ggml_graph_n_nodes(self._graph)
            assert built == position + 1, (
                f"node {builder.nodes[index].name} pulled in {built - position} nodes"
            )
        self._allocator = lib.ggml_gallocr_new(self._backend.buffer_type)
        if not lib.ggml_gallocr_alloc_graph(self._allocator, self._graph):
            raise GgmlError(
                f"graph {self.name!r}: no memory for about {self.schedule.buffer_nbytes / 2**20:.0f} MiB of activations"
            )
        COUNTERS.buffers_allocated += 2

    @property
    def compute_nbytes(self) -> int:
        """Bytes that ggml's allocator took for the activations."""
        return lib.ggml_gallocr_get_buffer_size(self._allocator, 0)

    # running

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Set every input, run all nodes and collectives, return the outputs by name.

        Its times are added to those of the context; where that keeps a timeline, the nodes run one by one for it.
        Raises ValueError for missing, unknown or misshapen inputs, CollectiveError when a collective fails.
        """
        timeline = self._context.timeline
        if timeline is None:
            return self._run(inputs, None)
        began = clock()
        outputs = self._run(inputs, timeline)
        timeline.add(REQUEST, "graph", self.name, began, clock(), self._facts)
        return outputs

    def _run(self, inputs: Mapping[str, np.ndarray], timeline: Timeline | None) -> dict[str, np.ndarray]:
        self._set_inputs(inputs)
        self.times = times = RunTimes()
        assert self._runner is not None, f"graph {self.name!r} was closed"
        if timeline is None:
            self._runner.run(times)
        else:
            self._runner.run_profiled(times, timeline)
        outputs = {name: _load(tensor) for name, tensor in self._builder.outputs.items()}
        self._runner.finish()
        self._context.times.add(times)
        COUNTERS.runs += 1
        return outputs

    @property
    def _facts(self) -> dict[str, Any]:
        schedule = self.schedule
        return {"nodes": len(schedule.order), "flops": schedule.flops, "bytes_sent": schedule.bytes_sent}

    def _set_inputs(self, inputs: Mapping[str, np.ndarray]) -> None:
        expected = self._builder.inputs
        if inputs.keys() != expected.keys():
            raise ValueError(f"graph {self.name!r} takes inputs {sorted(expected)}, got {sorted(inputs)}")
        for name, tensor in expected.items():
            values = np.asarray(inputs[name])
            if values.shape != tensor.shape:
                raise ValueError(f"input {name!r} must be {list(tensor.shape)}, got {list(values.shape)}")
            _store(tensor, values)

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
        if self._runner is not None:
            self._runner.close()
            self._runner = None
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
