"""Collectives over a group of ranks: one meaning for every backend.

This class checks arguments, compares the calls of the ranks, counts bytes and composes `all_reduce`; a backend moves
the data. Counts are elements, buffers are contiguous, blocks of peers follow each other in the order of the group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from edgedit import dtypes
from edgedit.errors import CollectiveError, EdgeditError
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.call import REDUCE_OPS, Call, disagreement
from edgedit.parallel.monitor import Monitor
from edgedit.parallel.reduce import ordered_reduce
from edgedit.parallel.split import array_split
from edgedit.parallel.work import Work

if TYPE_CHECKING:
    from edgedit.parallel.shared_memory import SharedMemory


class ProcessGroup(ABC):
    """The ranks that run one collective together.

    Every rank of the group makes the same calls in the same order. `label` names the tensor in messages.
    Unless `verified` says that the ranks have compared their schedules beforehand, each call first exchanges a small
    record of kind, dtype and counts, and every rank raises `CollectiveError` where they differ. Wrong arguments of
    this rank alone are `ValueError`. After a failure the group, and the context that owns it, is closed.
    """

    def __init__(self, name: str, ranks: Sequence[int], world_rank: int, monitor: Monitor) -> None:
        self.name = name  # the axis
        self.ranks = list(ranks)  # world ranks, in the order of the axis
        self.rank = self.ranks.index(world_rank)  # position in `ranks`
        self.size = len(self.ranks)
        self.bytes_sent = 0  # payload to other ranks; records and control messages are not counted
        self._monitor = monitor
        self._sequence = 0

    @property
    def waited_s(self) -> float:
        """Seconds that this rank has waited for peers in calls that Python made, on all groups of its context."""
        return self._monitor.waited_s

    # Collectives ------------------------------------------------------------------------------------------------

    def barrier(self, *, label: str = "") -> None:
        """Return once every rank of the group has called it."""
        self._begin(Call("barrier", self._next(), "u8", 0, label=label, group=self.name), verified=False)

    def all_gather(
        self, send: Buffer, recv: Buffer, recv_counts: Sequence[int] | None = None, *, label: str = "",
        verified: bool = False,
    ) -> None:  # fmt: skip
        """`recv` holds the `send` of every rank, in group order. `recv_counts`: elements of each (default: equal)."""
        self.all_gather_async(send, recv, recv_counts, label=label, verified=verified).wait()

    def all_gather_async(
        self, send: Buffer, recv: Buffer, recv_counts: Sequence[int] | None = None, *, label: str = "",
        verified: bool = False,
    ) -> Work:  # fmt: skip
        counts = [send.count] * self.size if recv_counts is None else list(recv_counts)
        call = self._call("all_gather", send, recv, [send.count] * self.size, counts, label)
        self._begin(call, verified)
        self.bytes_sent += send.nbytes * (self.size - 1)
        offsets = [0] * self.size
        return self._move(call, send, recv, call.send_counts, offsets, call.recv_counts)

    def all_to_all(
        self, send: Buffer, recv: Buffer, send_counts: Sequence[int], recv_counts: Sequence[int], *, label: str = "",
        verified: bool = False,
    ) -> None:  # fmt: skip
        """Block p of `send` arrives as block `rank` of `recv` on rank p. Counts are elements per peer."""
        self.all_to_all_async(send, recv, send_counts, recv_counts, label=label, verified=verified).wait()

    def all_to_all_async(
        self, send: Buffer, recv: Buffer, send_counts: Sequence[int], recv_counts: Sequence[int], *, label: str = "",
        verified: bool = False,
    ) -> Work:  # fmt: skip
        if sum(send_counts) > send.count:
            raise ValueError(
                f"all_to_all '{label}' on {self.name}: sends {sum(send_counts)} elements of a buffer of {send.count}"
            )
        call = self._call("all_to_all", send, recv, send_counts, recv_counts, label)
        self._begin(call, verified)
        self.bytes_sent += (sum(call.send_counts) - call.send_counts[self.rank]) * dtypes.itemsize(send.dtype)
        offsets = [sum(call.send_counts[:peer]) for peer in range(self.size)]
        return self._move(call, send, recv, call.send_counts, offsets, call.recv_counts)

    def all_reduce(
        self, send: Buffer, recv: Buffer, op: str = "sum", *, label: str = "", verified: bool = False
    ) -> None:
        """`recv[i]` is `op` (sum, max, min) over the ranks' `send[i]`, applied in rank order: the same bits everywhere.

        16-bit floats are added in f32 and rounded once.
        """
        self.all_reduce_async(send, recv, op, label=label, verified=verified).wait()

    def all_reduce_async(
        self, send: Buffer, recv: Buffer, op: str = "sum", *, label: str = "", verified: bool = False
    ) -> Work:
        """The reduction runs inside this call; what stays under way is the gathering of the reduced parts."""
        import numpy

        if op not in REDUCE_OPS:
            raise ValueError(f"all_reduce '{label}': operation {op!r}; legal: {', '.join(REDUCE_OPS)}")
        if (send.dtype, send.count) != (recv.dtype, recv.count):
            raise ValueError(
                f"all_reduce '{label}': send is {send.count} {send.dtype}, recv is {recv.count} {recv.dtype}"
            )
        call = Call(
            "all_reduce",
            self._next(),
            send.dtype,
            send.count,
            REDUCE_OPS.index(op),
            label=label,
            group=self.name,
        )
        self._begin(call, verified)
        shares = array_split(send.count, self.size)
        mine = shares[self.rank]
        parts = numpy.empty((self.size, mine), dtypes.to_numpy(send.dtype))
        self.all_to_all(
            send, Buffer.of(parts, send.dtype), shares, [mine] * self.size, label=label, verified=True
        )
        reduced = Buffer.of(ordered_reduce(parts, send.dtype, op), send.dtype)
        return self.all_gather_async(reduced, recv, shares, label=label, verified=True)

    def broadcast(self, buffer: Buffer, root: int = 0, *, label: str = "", verified: bool = False) -> None:
        """`buffer` of every rank becomes that of `root` (a rank of the group)."""
        self.broadcast_async(buffer, root, label=label, verified=verified).wait()

    def broadcast_async(
        self, buffer: Buffer, root: int = 0, *, label: str = "", verified: bool = False
    ) -> Work:
        self._check_peer("root", root)
        call = Call("broadcast", self._next(), buffer.dtype, buffer.count, root, label=label, group=self.name)
        self._begin(call, verified)
        if self.rank == root:
            self.bytes_sent += buffer.nbytes * (self.size - 1)
        return self._broadcast(call, buffer, root)

    # Point to point ---------------------------------------------------------------------------------------------

    def send(
        self, buffer: Buffer, dst: int, tag: int = 0, *, label: str = "", verified: bool = False
    ) -> None:
        """Send to `dst`, a rank of the group. Messages of one tag arrive in order. 0 <= tag < 10000."""
        self.send_async(buffer, dst, tag, label=label, verified=verified).wait()

    def send_async(
        self, buffer: Buffer, dst: int, tag: int = 0, *, label: str = "", verified: bool = False
    ) -> Work:
        call = self._peer_call("send", buffer, dst, tag, label)
        self.bytes_sent += buffer.nbytes
        return self._send(call, buffer, dst, tag, None if verified else call.pack(0))

    def recv(
        self, buffer: Buffer, src: int, tag: int = 0, *, label: str = "", verified: bool = False
    ) -> None:
        """Receive what `src` sends with `tag`; count and dtype must be those of the sender."""
        self.recv_async(buffer, src, tag, label=label, verified=verified).wait()

    def recv_async(
        self, buffer: Buffer, src: int, tag: int = 0, *, label: str = "", verified: bool = False
    ) -> Work:
        call = self._peer_call("recv", buffer, src, tag, label)

        def check(record: bytes) -> None:
            self._check_sender(call, Call.unpack(record, self.name), src)

        return self._recv(call, buffer, src, tag, None if verified else check)

    # Control ----------------------------------------------------------------------------------------------------

    def exchange(self, data: bytes, *, label: str = "") -> list[bytes]:
        """The `data` of every rank, in group order, of any length each. A control message: not in `bytes_sent`."""
        call = Call("exchange", self._next(), "u8", len(data), label=label, group=self.name)
        lengths = [peer.count for peer in self._begin(call, verified=False)]
        received = bytearray(max(1, sum(lengths)))
        send, recv = _bytes_buffer(bytearray(data or b"\0"), len(data)), _bytes_buffer(received, sum(lengths))
        self._move(call, send, recv, (len(data),) * self.size, [0] * self.size, tuple(lengths)).wait()
        starts = [sum(lengths[:peer]) for peer in range(self.size)]
        return [bytes(received[start : start + n]) for start, n in zip(starts, lengths, strict=True)]

    # Planned collectives that native code makes -------------------------------------------------------------------

    shares_memory = False  # whether `share` works

    def native_transport(self) -> Any:
        """A `_native.Transport` over this group, for exchanges that native code makes. Raises `EdgeditError` for a
        backend that has none."""
        raise EdgeditError(f"the ranks of {self.name} talk in a way that only --comm graph-cut can use")

    def share(self, nbytes: int, label: str = "shared memory") -> SharedMemory:
        """A segment of this rank and those of the others, all zeroed; a call that all ranks make together."""
        raise AssertionError(f"the ranks of {self.name} share no memory")

    def count_native(self, calls: int, nbytes: int) -> None:
        """Add collectives that native code has made."""
        self._sequence += calls
        self._monitor.calls_made[self.name] = self._sequence
        self.bytes_sent += nbytes

    def close(self) -> None:  # noqa: B027 (a backend that holds nothing has nothing to free)
        """Free what the backend holds. Every rank of the group calls it."""

    # What a backend does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _gather_records(self, call: Call, record: bytes) -> list[bytes]:
        """The records of every rank; all of one length."""

    @abstractmethod
    def _move(
        self, call: Call, send: Buffer, recv: Buffer, send_counts: Sequence[int], send_offsets: Sequence[int],
        recv_counts: Sequence[int],
    ) -> Work:  # fmt: skip
        """Block p of `send` (at `send_offsets[p]`) to block `rank` of `recv` on rank p, the own block included."""

    @abstractmethod
    def _broadcast(self, call: Call, buffer: Buffer, root: int) -> Work: ...

    @abstractmethod
    def _send(self, call: Call, buffer: Buffer, dst: int, tag: int, record: bytes | None) -> Work: ...

    @abstractmethod
    def _recv(
        self, call: Call, buffer: Buffer, src: int, tag: int, check: Callable[[bytes], None] | None
    ) -> Work:
        """`check` takes the record that the sender put before its data, and is called before the data is looked at."""

    # Internal ---------------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._sequence += 1
        self._monitor.calls_made[self.name] = self._sequence
        return self._sequence

    def _begin(self, call: Call, verified: bool) -> list[Call]:
        """Compare the call with those of the peers; returns all of them."""
        self._monitor.check(call)
        if verified or self.size == 1:
            return [call]
        records = self._gather_records(call, call.pack(self.size))
        calls = [Call.unpack(record, self.name) for record in records]
        difference = disagreement(calls, self.ranks)
        if difference is not None:
            self._fail(call, f"the ranks disagree: {difference}", self.size == self._monitor.world_size)
        return calls

    def _fail(self, call: Call, reason: str, seen_by_all: bool = False) -> NoReturn:
        raise self._monitor.failed(
            CollectiveError(self._monitor.describe(call, reason)), recoverable=seen_by_all
        )

    def _call(
        self,
        kind: str,
        send: Buffer,
        recv: Buffer,
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        label: str,
    ) -> Call:
        def refuse(reason: str) -> NoReturn:
            raise ValueError(f"{kind} '{label}' on {self.name}: {reason}")

        if len(send_counts) != self.size or len(recv_counts) != self.size:
            refuse(f"{len(send_counts)} send and {len(recv_counts)} receive counts for {self.size} ranks")
        if min(*send_counts, *recv_counts) < 0:
            refuse(f"negative counts in {list(send_counts)} or {list(recv_counts)}")
        if sum(recv_counts) > recv.count:
            refuse(f"receives {sum(recv_counts)} elements into a buffer of {recv.count}")
        if send.dtype != recv.dtype:
            refuse(f"sends {send.dtype} but receives {recv.dtype}")
        if send_counts[self.rank] != recv_counts[self.rank]:
            refuse(f"sends itself {send_counts[self.rank]} elements but expects {recv_counts[self.rank]}")
        return Call(
            kind,
            self._next(),
            send.dtype,
            send.count,
            0,
            tuple(send_counts),
            tuple(recv_counts),
            label,
            self.name,
        )

    def _peer_call(self, kind: str, buffer: Buffer, peer: int, tag: int, label: str) -> Call:
        self._check_peer("peer", peer)
        if peer == self.rank:
            raise ValueError(f"{kind} '{label}' on {self.name}: rank {peer} is this rank itself")
        if not 0 <= tag < 10_000:
            raise ValueError(f"{kind} '{label}' on {self.name}: tag {tag}; legal: 0 to 9999")
        call = Call(kind, self._sequence, buffer.dtype, buffer.count, peer, label=label, group=self.name)
        self._monitor.check(call)
        return call

    def _check_peer(self, what: str, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"{what} {rank} is not in group {self.name}; legal: 0 to {self.size - 1}")

    def _check_sender(self, call: Call, sender: Call, src: int) -> None:
        if (call.dtype, call.count) != (sender.dtype, sender.count):
            self._fail(
                call,
                f"rank {self.ranks[src]} sends {sender.count} {sender.dtype} '{sender.label}', "
                f"rank {self.ranks[self.rank]} expects {call.count} {call.dtype}",
            )


def _bytes_buffer(memory: bytearray, count: int) -> Buffer:
    import numpy

    owner = numpy.frombuffer(memory, numpy.uint8)  # arrays of ctypes would make a type for each length
    return Buffer(owner.ctypes.data, count, "u8", owner=owner)
