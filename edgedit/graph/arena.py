"""Receive tensors in memory that the ranks of a group share, so that peers write straight into them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgedit import _native
from edgedit.errors import GgmlError
from edgedit.graph._ggml import lib
from edgedit.graph.exchanges import Exchange, slot_count
from edgedit.parallel.process_group import ProcessGroup

_ALIGNMENT = 64


class Arena:
    """The slots of one executor in one group; making it is a call that all ranks of the group make together.

    Exchange i of the group uses slot i modulo their number. Slots are as large as this rank's exchanges need, so their
    places differ between ranks that hold unlike shares; the ranks tell each other.
    """

    def __init__(self, group: ProcessGroup, exchanges: Sequence[Exchange], label: str) -> None:
        self.exchanges = list(exchanges)
        # ranks with unlike shares may order the compute around their exchanges differently
        counts = group.exchange(str(slot_count(exchanges)).encode(), label=label)
        self.slots = max(map(int, counts))
        sizes = [_ALIGNMENT] * self.slots  # at least the one element of a rank that receives nothing
        for index, exchange in enumerate(exchanges):
            sizes[index % self.slots] = max(sizes[index % self.slots], _rounded(exchange.recv_nbytes))
        begin = _native.shm_slots_offset(group.size, self.slots)
        self._offsets = [begin + sum(sizes[:slot]) for slot in range(self.slots)]
        self.nbytes = begin + sum(sizes)
        self._memory = group.share(self.nbytes, label)
        self._base = self._memory.addresses[group.rank]
        self.transport = _native.shm_transport(group.rank, group.ranks, self.slots, self._memory.addresses)
        self._remote = self._exchange_offsets(group, label)
        self._buffer = lib.ggml_backend_cpu_buffer_from_ptr(self._base, self.nbytes)
        if not self._buffer:
            raise GgmlError(f"{label}: ggml cannot use shared memory of {self.nbytes} bytes")

    def address(self, exchange: Exchange) -> int:
        """Where this rank receives the exchange."""
        return self._base + self._offsets[self.slot(exchange)]

    def slot(self, exchange: Exchange) -> int:
        return self.exchanges.index(exchange) % self.slots

    def remote_offsets(self, exchange: Exchange) -> list[int]:
        """Per peer, where its segment takes what this rank sends it."""
        return self._remote[:, self.exchanges.index(exchange)].tolist()

    def place(self, tensor: Any, exchange: Exchange) -> None:
        """Let a ggml tensor without memory stand in the slot of its exchange."""
        lib.ggml_backend_tensor_alloc(self._buffer, tensor, self.address(exchange))

    def close(self) -> None:
        """Unmap the slots; no tensor in them may be used afterwards."""
        if self._buffer:
            lib.ggml_backend_buffer_free(self._buffer)
            self._buffer = None
        self._memory.close()

    def _exchange_offsets(self, group: ProcessGroup, label: str) -> np.ndarray:
        """[peer, exchange]: offsets into the segment of the peer."""
        own = np.array(
            [
                [
                    self._offsets[index % self.slots] + exchange.blocks[peer].recv_offset
                    for peer in range(group.size)
                ]
                for index, exchange in enumerate(self.exchanges)
            ],
            np.int64,
        )
        tables = [np.frombuffer(data, np.int64) for data in group.exchange(own.tobytes(), label=label)]
        return np.stack([table.reshape(own.shape)[:, group.rank] for table in tables])


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
