"""The portable way to run a schedule: segments through ggml, collectives through process groups."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from edgedit.graph._ggml import lib
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.collective import Collective
from edgedit.graph.dispatch import operand_counts, start
from edgedit.graph.profile import NodeByNode, add_exchange, add_segment
from edgedit.graph.runner import Runner
from edgedit.graph.schedule import Schedule, Segment, Start, Wait
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.timeline import Timeline, clock
from edgedit.parallel.times import RunTimes
from edgedit.parallel.work import Work


class GraphCutRunner(Runner):
    """Cuts the graph at its collectives: a segment is a view of it."""

    def __init__(
        self,
        builder: GraphBuilder,
        backend: CpuBackend,
        schedule: Schedule,
        groups: Mapping[str, ProcessGroup],
    ) -> None:
        self._builder = builder
        self._backend = backend
        self._schedule = schedule
        self._groups = groups

    def connect(self, graph: Any) -> None:
        self._graph = graph
        self._nodes: NodeByNode | None = None
        self._segments = {
            step.index: lib.ggml_graph_view(graph, step.begin, step.end) for step in self._schedule.segments
        }
        self._buffers = [self._buffers_of(collective) for collective in self._schedule.collectives]

    def run(self, times: RunTimes) -> None:
        flights: dict[int, Work] = {}
        for step in self._schedule.steps:
            began = time.perf_counter()
            if isinstance(step, Segment):
                self._backend.compute(
                    self._segments[step.index], f"{self._builder.name!r}, segment {step.index}"
                )
                times.compute_s += time.perf_counter() - began
                self._progress(flights, times)
            else:
                self._exchange(step, flights, times)

    def run_profiled(self, times: RunTimes, timeline: Timeline) -> None:
        if self._nodes is None:
            self._nodes = NodeByNode(self._builder, self._backend, self._schedule, self._graph)
        flights: dict[int, Work] = {}
        for step in self._schedule.steps:
            began, waited_before_s = clock(), times.wait_s
            if isinstance(step, Segment):
                for position in self._nodes.computed(step):
                    self._nodes.compute(position, times, timeline)
                add_segment(timeline, self._builder.name, step, began)
                self._progress(flights, times)
            else:
                self._exchange(step, flights, times)
                part = "start" if isinstance(step, Start) else "wait"
                collective, waited_s = (
                    self._schedule.collectives[step.collective],
                    times.wait_s - waited_before_s,
                )
                add_exchange(timeline, collective, part, began, clock(), waited_s)

    def _exchange(self, step: Start | Wait, flights: dict[int, Work], times: RunTimes) -> None:
        group = self._groups[self._schedule.collectives[step.collective].axis]
        began, waited_before_s = time.perf_counter(), group.waited_s
        if isinstance(step, Start):
            flights[step.collective] = self._start(step.collective)
        else:
            flights.pop(step.collective).wait()
        waited_s = group.waited_s - waited_before_s
        times.wait_s += waited_s
        times.exchange_s += time.perf_counter() - began - waited_s

    def _progress(self, flights: Mapping[int, Work], times: RunTimes) -> None:
        """Let transports move bytes that wait for it."""
        if not flights:
            return
        began = time.perf_counter()
        for work in flights.values():
            work.is_done()
        times.exchange_s += time.perf_counter() - began

    def _start(self, index: int) -> Work:
        collective = self._schedule.collectives[index]
        return start(collective, self._groups[collective.axis], *self._buffers[index])

    def _buffers_of(self, collective: Collective) -> tuple[Buffer, Buffer]:
        sent, received = operand_counts(collective)
        send, receive = (self._builder.pointers[i].contents for i in (collective.send, collective.start))
        return (
            Buffer(send.data or 0, sent, collective.dtype, owner=self._builder),
            Buffer(receive.data or 0, received, collective.dtype, owner=self._builder),
        )
