"""The in-graph way to run a schedule on CPU: ggml runs the whole graph, and its collective nodes call native code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edgedit import _native
from edgedit.graph.arena import Arena
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.collective import Collective
from edgedit.graph.custom_nodes import parameters, patch
from edgedit.graph.exchanges import Exchange, exchanges_of, releases
from edgedit.graph.profile import NodeByNode, add_exchange, add_segment
from edgedit.graph.runner import Runner
from edgedit.graph.schedule import Schedule, Segment, Start
from edgedit.parallel.call import REDUCE_OPS, Call
from edgedit.parallel.context import ParallelContext
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.timeline import Timeline, clock
from edgedit.parallel.times import RunTimes

_ELEMENTS = ("f32", "f16", "bf16", "i32")  # `Element` of csrc/transport/reduce.hpp


class InGraphRunner(Runner):
    """One call of ggml a run. Exchanges go through each group's own transport: MPI, or slots in shared memory."""

    def __init__(
        self, builder: GraphBuilder, backend: CpuBackend, schedule: Schedule, groups: Mapping[str, ProcessGroup],
        context: ParallelContext,
    ) -> None:  # fmt: skip
        self._builder = builder
        self._backend = backend
        self._schedule = schedule
        self._groups = groups
        self._context = context
        outputs = [tensor.node for tensor in builder.outputs.values() if tensor.node is not None]
        self._producers = self._find_producers()
        position = {index: at for at, index in enumerate(schedule.order)}
        opens = {index: min(position[node] for node in nodes) for index, nodes in self._producers.items()}
        self._exchanges = exchanges_of(schedule, builder.nodes, outputs, opens)
        # position -> collective and which part of it ggml's node there is
        self._exchange_at = {
            step.position: (step.collective, "start" if isinstance(step, Start) else "wait")
            for step in schedule.steps
            if not isinstance(step, Segment)
        }
        for index, nodes in self._producers.items():
            self._exchange_at.update((position[node], (index, "pack")) for node in nodes)
        self._arenas: dict[str, Arena] = {}
        self._chunks: list[np.ndarray] = []  # what all_reduce receives, where no arena holds it

    def place(self) -> None:
        for axis, group in self._groups.items():
            if not group.shares_memory:
                continue
            exchanges = [e for e in self._exchanges if self._collective(e).axis == axis]
            arena = self._arenas[axis] = Arena(group, exchanges, f"receive slots of {self._builder.name}")
            for exchange in exchanges:
                if not exchange.is_parts:
                    arena.place(self._builder.pointers[self._collective(exchange).start], exchange)

    def connect(self, graph: Any) -> None:
        self._graph = graph
        self._nodes: NodeByNode | None = None
        program = self._program = self._context.native_program()
        self._abort = _native.collective_abort, program.address
        transports = {
            axis: self._arenas[axis].transport if axis in self._arenas else group.native_transport()
            for axis, group in self._groups.items()
        }
        numbers: dict[tuple[int, bool], int] = {}
        for exchange in self._exchanges:
            transport = transports[self._collective(exchange).axis]
            numbers[exchange.collective, exchange.is_parts] = self._add(exchange, transport)
        for index, collective in enumerate(self._schedule.collectives):
            whole = numbers[index, False]
            if collective.kind == "all_reduce":
                element, operation = (
                    _ELEMENTS.index(collective.dtype),
                    REDUCE_OPS.index(collective.reduce_op or "sum"),
                )
                own = collective.send_counts[collective.rank]
                program.add_all_reduce(numbers[index, True], whole, element, operation, collective.size, own)
            else:
                program.add_collective(whole)
            node = program.node(index)
            patch(self._builder.pointers[collective.start], _native.collective_start, node)
            patch(self._builder.pointers[collective.wait], _native.collective_wait, node)
        for index, nodes in self._producers.items():
            self._redirect(index, nodes)
        for index, at_wait, read in releases(self._schedule, self._exchanges):
            number = numbers[self._exchanges[read].collective, self._exchanges[read].is_parts]
            (program.release_at_wait if at_wait else program.release_at_start)(index, number)
        order = [step.collective for step in self._schedule.steps if isinstance(step, Start)]
        calls = [_call(self._schedule.collectives[index]) for index in order]
        nbytes = dict.fromkeys(self._groups, 0)
        for collective in self._schedule.collectives:
            nbytes[collective.axis] += collective.bytes_sent
        self._calls = self._context.native_calls(program, calls, order, nbytes)

    def run(self, times: RunTimes) -> None:
        began = clock()
        with self._calls as calls:
            if not self._backend.compute(self._graph, self._builder.name, self._abort):
                calls.fail()
        calls.count()
        times.wait_s, times.exchange_s = self._program.times()
        times.compute_s = clock() - began - times.wait_s - times.exchange_s

    def run_profiled(self, times: RunTimes, timeline: Timeline) -> None:
        if self._nodes is None:
            parts = self._builder, self._backend, self._schedule, self._graph
            self._nodes = NodeByNode(*parts, self._abort)
        with self._calls as calls:
            for step in self._schedule.steps:
                began = clock()
                if isinstance(step, Segment):
                    for position in self._nodes.computed(step):
                        if not self._run_node(self._nodes, position, times, timeline):
                            calls.fail()
                    add_segment(timeline, self._builder.name, step, began)
                elif not self._run_node(self._nodes, step.position, times, timeline):
                    calls.fail()
        calls.count()

    def _run_node(self, nodes: NodeByNode, position: int, times: RunTimes, timeline: Timeline) -> bool:
        if position not in self._exchange_at:
            return nodes.compute(position, times, timeline)
        index, part = self._exchange_at[position]
        began, (waited_before_s, _) = clock(), self._program.times_of(index)
        finished = nodes.run(position)
        ended, (waited_s, _) = clock(), self._program.times_of(index)
        waited_s -= waited_before_s
        times.wait_s += waited_s
        times.exchange_s += ended - began - waited_s
        add_exchange(timeline, self._schedule.collectives[index], part, began, ended, waited_s)
        return finished

    def finish(self) -> None:
        self._program.end()

    def close(self) -> None:
        for arena in self._arenas.values():
            arena.close()
        self._arenas.clear()

    def _find_producers(self) -> dict[int, list[int]]:
        """Per collective whose blocks can be packed straight into the peers' slots, the nodes that pack them."""
        producers = {}
        for index, collective in enumerate(self._schedule.collectives):
            # what is gathered or passed on whole goes to peers that the node which packs it knows nothing of
            is_packed = collective.kind == "all_to_all" and collective.send in self._builder.pack_specs
            if is_packed and self._groups[collective.axis].shares_memory:
                nodes = [collective.send]  # several nodes that fill one buffer form a chain of views
                while (base := self._builder.nodes[nodes[-1]].base) is not None:
                    nodes.append(base)
                producers[index] = nodes
        return producers

    def _redirect(self, index: int, nodes: Sequence[int]) -> None:
        """Let the pack nodes of a collective write to the peers, once their slots are free."""
        collective = self._schedule.collectives[index]
        targets = [self._program.target(index, peer) for peer in range(collective.size)]
        for spec in self._builder.pack_specs[collective.send]:
            spec.set_targets(targets)
        for node in nodes:
            function, tasks, userdata = parameters(self._builder.pointers[node])
            producer = self._program.producer(index, function, userdata)
            patch(self._builder.pointers[node], _native.collective_producer, producer, tasks)

    def _collective(self, exchange: Exchange) -> Collective:
        return self._schedule.collectives[exchange.collective]

    def _add(self, exchange: Exchange, transport: Any) -> int:
        collective = self._collective(exchange)
        arena = self._arenas.get(collective.axis)
        is_sums = collective.kind == "all_reduce" and not exchange.is_parts
        send = self._address(collective.start if is_sums else collective.send)
        recv = self._address(collective.start)
        if exchange.is_parts:
            recv = arena.address(exchange) if arena else self._scratch(exchange.recv_nbytes)
        remote = arena.remote_offsets(exchange) if arena else [0] * collective.size
        blocks = [
            (b.send_offset, b.send_nbytes, b.recv_offset, b.recv_nbytes, offset)
            for b, offset in zip(exchange.blocks, remote, strict=True)
        ]
        return self._program.add_exchange(transport, send, recv, blocks, arena.slot(exchange) if arena else 0)

    def _address(self, node: int) -> int:
        return self._builder.pointers[node].contents.data or 0

    def _scratch(self, nbytes: int) -> int:
        self._chunks.append(np.empty(max(1, nbytes), np.uint8))
        return self._chunks[-1].ctypes.data


def _call(collective: Collective) -> Call:
    count = sum(collective.recv_counts) if collective.global_count is None else collective.global_count
    return Call(collective.kind, 0, collective.dtype, count, label=collective.name, group=collective.axis)
