"""Groups of ranks on one host that copy through shared memory. Only messages between two ranks go through MPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgedit import _native, dtypes
from edgedit.parallel.backends.mpi import MpiGroup
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.byte_blocks import ByteBlock, broadcast_blocks, byte_blocks
from edgedit.parallel.call import Call
from edgedit.parallel.monitor import Monitor
from edgedit.parallel.shared_memory import SharedMemory, share
from edgedit.parallel.waiting import Polled
from edgedit.parallel.work import Work

# Records have rings of their own: a rank that compares a call never takes another rank's data for its record.
_RECORD_RING_NBYTES = 4096
_DATA_RING_NBYTES = 1 << 18


class ShmGroup(MpiGroup):
    """A group with a byte ring per ordered pair of ranks. Creating it is a call that all its ranks make together.

    Raises EdgeditError on every rank where they cannot share memory.
    """

    shares_memory = True

    def __init__(
        self, name: str, ranks: Sequence[int], world_rank: int, monitor: Monitor, world_comm: Any
    ) -> None:
        super().__init__(name, ranks, world_rank, monitor, world_comm)
        records_nbytes = _native.Channels.inbox_nbytes(self.size, _RECORD_RING_NBYTES)
        data_nbytes = _native.Channels.inbox_nbytes(self.size, _DATA_RING_NBYTES)
        self._records: Any = None  # until then, what ranks exchange goes through MPI
        self._memory = self.share(records_nbytes + data_nbytes)
        inboxes = self._memory.addresses
        self._data = _native.Channels(
            self.rank, [address + records_nbytes for address in inboxes], _DATA_RING_NBYTES
        )
        self._records = _native.Channels(self.rank, inboxes, _RECORD_RING_NBYTES)
        self._sequence = monitor.calls_made[name] = 0  # what was called until now is nobody's call

    def share(self, nbytes: int, label: str = "shared memory") -> SharedMemory:
        """A segment of this rank and those of the others, all zeroed. All ranks of the group call it together."""
        return share(nbytes, self.rank, lambda data: self.exchange(data, label=label))

    def close(self) -> None:
        del self._records, self._data
        self._memory.close()
        super().close()

    def _gather_records(self, call: Call, record: bytes) -> list[bytes]:
        if self._records is None:
            return super()._gather_records(call, record)
        nbytes = len(record)
        gathered = np.empty((self.size, nbytes), np.uint8)
        sent = np.frombuffer(record, np.uint8)
        blocks = [(0, nbytes, peer * nbytes, nbytes) for peer in range(self.size)]
        self._post(
            call, self._records, sent.ctypes.data, gathered.ctypes.data, blocks, (sent, gathered)
        ).wait()
        return [row.tobytes() for row in gathered]

    def _move(
        self, call: Call, send: Buffer, recv: Buffer, send_counts: Sequence[int], send_offsets: Sequence[int],
        recv_counts: Sequence[int],
    ) -> Work:  # fmt: skip
        if self._records is None:
            return super()._move(call, send, recv, send_counts, send_offsets, recv_counts)
        blocks = byte_blocks(dtypes.itemsize(recv.dtype), send_counts, send_offsets, recv_counts)
        return self._post(call, self._data, send.pointer, recv.pointer, blocks, (send, recv))

    def _broadcast(self, call: Call, buffer: Buffer, root: int) -> Work:
        blocks = broadcast_blocks(buffer.nbytes, self.size, self.rank, root)
        return self._post(call, self._data, buffer.pointer, buffer.pointer, blocks, buffer)

    def _post(
        self, call: Call, channels: Any, send: int, recv: int, blocks: Sequence[ByteBlock], keep: Any
    ) -> Work:
        """Work over an exchange; `keep` holds its memory until the end."""
        number = channels.post(send, recv, [(*block, 0) for block in blocks])  # rings have no remote offset

        def ready() -> bool:
            nonlocal keep
            if not channels.test(number):
                return False
            keep = None
            return True

        def missing() -> list[int]:
            return [self.ranks[peer] for peer in channels.missing(number)]

        peers = [rank for rank in self.ranks if rank != self._monitor.rank]
        return Polled(call, self._monitor, peers, ready, missing, lambda: channels.moved_s)
