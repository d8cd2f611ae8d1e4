"""The two ways to run a schedule on a CUDA device. Neither makes the host wait for the device between segments."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edgedit.errors import EdgeditError, GgmlError
from edgedit.graph import _ggml
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.collective import Collective
from edgedit.graph.cuda_plan import add_nodes
from edgedit.graph.dispatch import operand_counts, start
from edgedit.graph.exchanges import Exchange, exchanges_of
from edgedit.graph.runner import Runner, RunTimes
from edgedit.graph.schedule import Schedule, Segment, Start, Wait
from edgedit.parallel import cuda
from edgedit.parallel.backends.device import DeviceGroup
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.call import REDUCE_OPS
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.waiting import Backoff
from edgedit.parallel.work import Work

if TYPE_CHECKING:
    from edgedit.graph.cuda import CudaBackend


class _DeviceRunner(Runner):
    def __init__(
        self,
        builder: GraphBuilder,
        backend: CudaBackend,
        schedule: Schedule,
        groups: Mapping[str, ProcessGroup],
    ) -> None:
        self._cuda = cuda.usable_extension()
        self._builder = builder
        self._backend = backend
        self._schedule = schedule
        self._groups: dict[str, DeviceGroup] = {}
        self._views: list[Any] = []
        for axis, group in groups.items():
            if not isinstance(group, DeviceGroup):
                raise EdgeditError(
                    f"graph {builder.name!r}: the ranks of {axis} exchange host memory; a device needs --backend nccl "
                    "or cuda-ipc"
                )
            self._groups[axis] = group

    def _new_plan(self) -> Any:
        return self._refused(self._cuda.Plan, self._backend.pointer, self._backend.device)

    def _refused(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._cuda.DeviceError as error:
            raise GgmlError(f"graph {self._builder.name!r}: {error}") from error

    def _add_segment(self, plan: Any, graph: Any, segment: Segment) -> None:
        views = add_nodes(plan, graph, self._builder, self._schedule, segment.begin, segment.end)
        self._views.extend(views)

    def _address(self, node: int) -> int:
        return ctypes.addressof(self._builder.pointers[node].contents)


class CudaRunner(_DeviceRunner):
    """In-graph: one call enqueues everything, collectives included; then the host waits for the end."""

    def connect(self, graph: object) -> None:
        outputs = [tensor.node for tensor in self._builder.outputs.values() if tensor.node is not None]
        exchanges: dict[int, list[Exchange]] = {}
        for exchange in exchanges_of(self._schedule, self._builder.nodes, outputs):
            exchanges.setdefault(exchange.collective, []).append(exchange)
        self._channels = {axis: self._channel(axis, exchanges) for axis in self._groups}
        self._plan = self._new_plan()
        flights: dict[int, int] = {}
        for step in self._schedule.steps:
            if isinstance(step, Segment):
                self._add_segment(self._plan, graph, step)
            elif isinstance(step, Start):
                collective = self._schedule.collectives[step.collective]
                native = self._native(collective, exchanges[step.collective])
                flights[step.collective] = self._plan.start(self._address(collective.start), native)
            else:
                self._plan.wait(flights[step.collective])
        self._refused(self._plan.compile)
        self._sent = dict.fromkeys(self._groups, (0, 0))
        for collective in self._schedule.collectives:
            calls, nbytes = self._sent[collective.axis]
            self._sent[collective.axis] = calls + 1, nbytes + collective.bytes_sent

    def run(self, times: RunTimes) -> None:
        began = time.perf_counter()
        try:
            self._plan.run()
        except self._cuda.DeviceError as error:
            self._give_up()
            raise GgmlError(f"graph {self._builder.name!r}: {error}") from error
        self._wait()
        for axis, (calls, nbytes) in self._sent.items():
            self._groups[axis].count_native(calls, nbytes)
        times.compute_s = time.perf_counter() - began

    def _wait(self) -> None:
        groups = list(self._groups.values())
        if groups:  # any of them watches over the whole world
            groups[0].watch(f"run of {self._builder.name}", self._has_ended, self._give_up).wait()
            return
        backoff = Backoff()
        while not self._has_ended():
            backoff.pause()

    def _has_ended(self) -> bool:
        try:
            for channel in self._channels.values():
                failure = channel.failure()
                if failure:
                    raise EdgeditError(failure)
            return bool(self._plan.has_ended())
        except self._cuda.DeviceError as error:
            raise EdgeditError(str(error)) from error

    def _give_up(self) -> None:
        for channel in self._channels.values():
            channel.abort()

    def _channel(self, axis: str, exchanges: Mapping[int, list[Exchange]]) -> Any:
        rank = self._groups[axis].rank
        sizes = [
            max(block.send_nbytes, block.recv_nbytes)
            for index, several in exchanges.items()
            if self._schedule.collectives[index].axis == axis
            for exchange in several
            for peer, block in enumerate(exchange.blocks)
            if peer != rank
        ]
        return self._groups[axis].native_channel(max(sizes, default=0))

    def _native(self, collective: Collective, exchanges: list[Exchange]) -> Any:
        """The collective for the device executor; it is given the node, and so its tensors, when it starts."""
        make, channel = self._cuda.Collective, self._channels[collective.axis]
        blocks = [
            (block.send_offset, block.send_nbytes, block.recv_offset, block.recv_nbytes)
            for block in exchanges[0].blocks
        ]
        if collective.kind == "all_reduce":
            type_id = _ggml.TYPE_IDS[collective.dtype]
            op = REDUCE_OPS.index(collective.reduce_op or "sum")
            return self._refused(
                make.all_reduce, channel, collective.send_counts, type_id, op, self._backend.device
            )
        if collective.kind == "broadcast":
            # the root keeps its own copy as well, which the blocks leave out
            return make.broadcast(channel, max(block.recv_nbytes for block in exchanges[0].blocks), 0)
        if collective.kind == "all_gather" and len(set(collective.recv_counts)) == 1:
            return make.all_gather(channel, blocks[0][3])
        return self._refused(make.exchange, channel, blocks)


class CudaGraphCutRunner(_DeviceRunner):
    """Graph-cut: segment by segment, collectives by the process group on the device pointers."""

    def connect(self, graph: object) -> None:
        self._plans: dict[int, Any] = {}
        for segment in self._schedule.segments:
            plan = self._plans[segment.index] = self._new_plan()
            self._add_segment(plan, graph, segment)
            self._refused(plan.compile)
        self._buffers = [self._buffers_of(collective) for collective in self._schedule.collectives]

    def run(self, times: RunTimes) -> None:
        flights: dict[int, Work] = {}
        for step in self._schedule.steps:
            began = time.perf_counter()
            if isinstance(step, Segment):
                self._compute(self._plans[step.index])
                times.compute_s += time.perf_counter() - began
            elif isinstance(step, Start):
                flights[step.collective] = self._start(
                    self._schedule.collectives[step.collective], step.collective
                )
            elif isinstance(step, Wait):
                flights.pop(step.collective).wait()
                times.wait_s += time.perf_counter() - began

    def _compute(self, plan: Any) -> None:
        """Up to the end: the stream of a process group knows nothing of ggml's."""
        self._refused(plan.run)
        backoff = Backoff()
        while not self._refused(plan.has_ended):
            backoff.pause()

    def _start(self, collective: Collective, index: int) -> Work:
        send, receive = self._buffers[index]
        group = self._groups[collective.axis]
        if collective.kind == "broadcast":
            if collective.rank == 0:
                group.copy(send, receive)
            return group.broadcast_async(receive, 0, label=collective.name, verified=True)
        return start(collective, group, send, receive)

    def _buffers_of(self, collective: Collective) -> tuple[Buffer, Buffer]:
        sent, received = operand_counts(collective)
        send, receive = (self._builder.pointers[i].contents for i in (collective.send, collective.start))
        device = self._backend.name
        return (
            Buffer(send.data or 0, sent, collective.dtype, device, owner=self._builder),
            Buffer(receive.data or 0, received, collective.dtype, device, owner=self._builder),
        )
