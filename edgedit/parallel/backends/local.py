"""Ranks as threads of one process: for tests, and for debugging a model without MPI.

Messages are copied into mailboxes when they are sent. A mailbox is found by who sends to whom in which call, so the
order in which a rank waits for its work does not matter.
"""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence

from edgedit import dtypes
from edgedit.errors import CollectiveError
from edgedit.parallel.buffer import Buffer, copy_elements
from edgedit.parallel.call import Call
from edgedit.parallel.deadlock import DeadlockDetector
from edgedit.parallel.mesh import Mesh
from edgedit.parallel.monitor import Monitor, Trouble
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.waiting import Backoff, Polled
from edgedit.parallel.work import Work

_LOOK_S = 0.25  # how often a waiting rank looks for a deadlock


class Hub:
    """What the threads of one local world share. Single dict and list operations, which the interpreter keeps whole."""

    def __init__(self) -> None:
        self.mail: dict[Hashable, bytes] = {}
        self.failures: list[tuple[int, Trouble]] = []  # the first one is the cause
        self.left: dict[int, dict[str, int]] = {}
        self.monitors: dict[int, LocalMonitor] = {}


class LocalMonitor(Monitor):
    """Failure and departure of the other threads."""

    def __init__(self, mesh: Mesh, rank: int, hub: Hub) -> None:
        super().__init__(rank, mesh.world_size)
        self.hub = hub
        hub.monitors[rank] = self
        self._detector = DeadlockDetector(rank, mesh.group_of)
        self._num_looks = 0
        self._next_look_s = 0.0

    def trouble(self) -> Trouble | None:
        for rank, trouble in self.hub.failures[:1]:
            if rank != self.rank:
                return trouble
        if self.waiting_in is None or time.monotonic() < self._next_look_s:
            return None
        self._next_look_s = time.monotonic() + _LOOK_S
        self._num_looks += 1
        reports = {rank: monitor.report(self._num_looks) for rank, monitor in list(self.hub.monitors.items())}
        circle = self._detector.look(reports)
        return Trouble(CollectiveError, circle) if circle else None

    def has_left(self, rank: int) -> Mapping[str, int] | None:
        return self.hub.left.get(rank)

    def tell(self, trouble: Trouble) -> None:
        self.hub.failures.append((self.rank, trouble))

    def leave(self, progress: Callable[[], None]) -> None:
        self.hub.left[self.rank] = dict(self.calls_made)
        backoff = Backoff()
        while len(self.hub.left) < self.world_size:
            trouble = self.trouble()
            if trouble is not None:
                raise self.lost(None, trouble, "closing the context")
            backoff.pause()


class LocalGroup(ProcessGroup):
    """A group of threads."""

    def __init__(self, name: str, ranks: Sequence[int], world_rank: int, monitor: LocalMonitor) -> None:
        super().__init__(name, ranks, world_rank, monitor)
        self._hub = monitor.hub
        self._place = (name, tuple(ranks))
        self._num_messages: defaultdict[Hashable, int] = defaultdict(int)

    def _gather_records(self, call: Call, record: bytes) -> list[bytes]:
        peers = [peer for peer in range(self.size) if peer != self.rank]
        for peer in peers:
            self._post(peer, ("record", call.sequence), record)
        records = {self.rank: record}
        self._take(call, [(peer, ("record", call.sequence)) for peer in peers], records.__setitem__).wait()
        return [records[peer] for peer in range(self.size)]

    def _move(
        self, call: Call, send: Buffer, recv: Buffer, send_counts: Sequence[int], send_offsets: Sequence[int],
        recv_counts: Sequence[int],
    ) -> Work:  # fmt: skip
        recv_offsets = [sum(recv_counts[:peer]) for peer in range(self.size)]
        width = dtypes.itemsize(send.dtype)
        for peer, count in enumerate(send_counts):
            if peer == self.rank:
                copy_elements(send, send_offsets[peer], recv, recv_offsets[peer], count)
            elif count:
                block = ctypes.string_at(send.pointer + send_offsets[peer] * width, count * width)
                self._post(peer, ("move", call.sequence), block)

        def deliver(peer: int, block: bytes) -> None:
            self._fill(call, recv, recv_offsets[peer], recv_counts[peer], block, peer)

        sources = [peer for peer, count in enumerate(recv_counts) if count and peer != self.rank]
        return self._take(call, [(peer, ("move", call.sequence)) for peer in sources], deliver)

    def _broadcast(self, call: Call, buffer: Buffer, root: int) -> Work:
        key = ("broadcast", call.sequence)
        if self.rank == root:
            block = ctypes.string_at(buffer.pointer, buffer.nbytes)
            for peer in range(self.size):
                if peer != root:
                    self._post(peer, key, block)
            return self._take(call, [], lambda peer, block: None)
        return self._take(
            call, [(root, key)], lambda peer, block: self._fill(call, buffer, 0, buffer.count, block, peer)
        )

    def _send(self, call: Call, buffer: Buffer, dst: int, tag: int, record: bytes | None) -> Work:
        number = self._number("send", dst, tag)
        if record is not None:
            self._post(dst, ("record of", tag, number), record)
        self._post(dst, ("message", tag, number), ctypes.string_at(buffer.pointer, buffer.nbytes))
        return self._take(call, [], lambda peer, block: None)

    def _recv(
        self, call: Call, buffer: Buffer, src: int, tag: int, check: Callable[[bytes], None] | None
    ) -> Work:
        number = self._number("recv", src, tag)
        record: tuple[int, Hashable] = (src, ("record of", tag, number))
        message: tuple[int, Hashable] = (src, ("message", tag, number))

        def deliver(peer: int, block: bytes) -> None:
            self._fill(call, buffer, 0, buffer.count, block, peer)

        if check is None:
            return self._take(call, [message], deliver)
        handlers = iter((lambda peer, block: check(block), deliver))
        return self._take(call, [record, message], lambda peer, block: next(handlers)(peer, block))

    def _number(self, direction: str, peer: int, tag: int) -> int:
        self._num_messages[direction, peer, tag] += 1
        return self._num_messages[direction, peer, tag]

    def _post(self, peer: int, key: Hashable, block: bytes) -> None:
        self._hub.mail[self._place, self.rank, peer, key] = block

    def _take(
        self, call: Call, expected: Sequence[tuple[int, Hashable]], deliver: Callable[[int, bytes], None]
    ) -> Work:
        """Work that hands each expected message to `deliver`, in the order given."""
        pending = list(expected)

        def ready() -> bool:
            while pending:
                peer, key = pending[0]
                block = self._hub.mail.pop((self._place, peer, self.rank, key), None)
                if block is None:
                    return False
                del pending[0]
                deliver(peer, block)
            return True

        def missing() -> list[int]:
            return [self.ranks[peer] for peer, _ in pending]

        return Polled(call, self._monitor, missing(), ready, missing)

    def _fill(self, call: Call, recv: Buffer, offset: int, count: int, block: bytes, peer: int) -> None:
        width = dtypes.itemsize(recv.dtype)
        if len(block) != count * width:
            self._fail(
                call,
                f"rank {self.ranks[peer]} sent {len(block)} bytes, rank {self._monitor.rank} expects {count * width}",
            )
        ctypes.memmove(recv.pointer + offset * width, block, len(block))
