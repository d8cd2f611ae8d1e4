"""Groups of two ranks of one host whose devices copy straight into each other's memory, through CUDA IPC.

The channel is tried out by both ranks before it is used. Where it is refused, or fails the trial, both retire it and
use NCCL instead; so do groups of more than two ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from edgedit.errors import EdgeditError
from edgedit.parallel import cuda
from edgedit.parallel.backends.nccl import NcclGroup
from edgedit.parallel.byte_blocks import ByteBlock
from edgedit.parallel.call import REDUCE_OPS
from edgedit.parallel.monitor import Monitor

SIZE = 2
_FIRST_SLOT_NBYTES = 1 << 20
_GGML_TYPES = {"f32": 0, "f16": 1, "bf16": 30}


class CudaIpcGroup(NcclGroup):
    """An NcclGroup that copies directly for as long as that works. `retired` says why it does not, or is empty."""

    def __init__(
        self, name: str, ranks: Sequence[int], world_rank: int, monitor: Monitor, world_comm: Any, device: int,
        timeout_s: float,
    ) -> None:  # fmt: skip
        super().__init__(name, ranks, world_rank, monitor, world_comm, device, timeout_s)
        self.retired = "" if self.size == SIZE else f"cuda-ipc joins two ranks, this group has {self.size}"
        self._extension: Any = None
        self._channel: Any = None  # of graph-cut collectives
        self._queue: Any = None
        if not self.retired:
            self._extension = cuda.usable_extension()
            self._queue = self._extension.Queue(device)
            self._channel = self._opened(_FIRST_SLOT_NBYTES)

    def native_channel(self, slot_nbytes: int) -> Any:
        channel = None if self.retired else self._opened(slot_nbytes)
        return super().native_channel(slot_nbytes) if channel is None else channel

    def close(self) -> None:
        self._channel = self._queue = None
        super().close()

    def _opened(self, slot_nbytes: int) -> Any:
        """A channel of that slot size, or None on both ranks, which are retired then."""
        channel, reason = cuda.open_peer_channel(
            self._extension, self.rank, self.device, slot_nbytes,
            lambda data: self.exchange(data, label="cuda-ipc channel"),
        )  # fmt: skip
        if channel is None:
            self.retired = reason or "refused by the other rank"
            if self.rank == 0:
                warnings.warn(
                    f"{self.name}: cuda-ipc is not possible, using NCCL ({self.retired})", stacklevel=2
                )
        return channel

    def _exchange(self, send: int, recv: int, blocks: Sequence[ByteBlock]) -> Callable[[], bool]:
        if not self.retired:
            # What one rank sends the other receives, so both find the slots too small in the same call.
            _, outgoing, _, incoming = blocks[1 - self.rank]
            needed = max(outgoing, incoming)
            if needed > self._channel.slot_nbytes:
                self._queue.synchronize()
                self._channel = self._opened(max(needed, 2 * self._channel.slot_nbytes))
        if self.retired:
            return super()._exchange(send, recv, blocks)
        try:
            number = self._queue.exchange(self._channel, send, recv, blocks)
        except self._extension.DeviceError as error:
            raise EdgeditError(f"cuda-ipc: {error}") from error

        def ready() -> bool:
            try:
                return bool(self._queue.has_done(number))
            except self._extension.DeviceError as error:
                raise EdgeditError(f"cuda-ipc: {error}") from error

        return ready

    def _reduce(self, parts: Any, recv: int, count: int, dtype: str, op: str) -> None:
        if self.retired:
            super()._reduce(parts, recv, count, dtype, op)
        else:
            address = parts.data.ptr
            self._queue.reduce(recv, address, self.size, count, _GGML_TYPES[dtype], REDUCE_OPS.index(op))

    def _give_up(self) -> None:
        if self._channel is not None:
            self._channel.abort()
        super()._give_up()
