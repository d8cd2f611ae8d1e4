"""The portable way to run a schedule: segments through ggml, collectives through process groups."""

from __future__ import annotations

import time
from collections.abc import Mapping

from edgedit.graph._ggml import lib
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.collective import Collective
from edgedit.graph.dispatch import operand_counts, start
from edgedit.graph.runner import Runner, RunTimes
from edgedit.graph.schedule import Schedule, Segment, Start, Wait
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.process_group import ProcessGroup
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

    def connect(self, graph: object) -> None:
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
                for work in flights.values():
                    work.is_done()  # lets the transport move bytes that wait for it
                times.compute_s += time.perf_counter() - began
            elif isinstance(step, Start):
                flights[step.collective] = self._start(step.collective)
                times.wait_s += time.perf_counter() - began
            elif isinstance(step, Wait):
                flights.pop(step.collective).wait()
                times.wait_s += time.perf_counter() - began

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
