"""A group of one rank that does everything on its device: what NCCL does with nobody else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgedit.parallel import cuda
from edgedit.parallel.backends.device import DeviceGroup
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.byte_blocks import ByteBlock
from edgedit.parallel.monitor import Monitor
from edgedit.parallel.process_group import ProcessGroup


class OneRankGroup(DeviceGroup):
    def __init__(self) -> None:
        ProcessGroup.__init__(self, "ulysses", [0], 0, Monitor(0, 1))
        extension, library = cuda.usable_extension(), cuda.nccl_library()
        unique_id = extension.nccl_unique_id(library)
        self.communicator = extension.Communicator(library, unique_id, 0, 1, 0, 60.0, None)
        self.queue = extension.Queue(0)

    def native_channel(self, slot_nbytes: int) -> Any:
        return self.communicator

    def _exchange(self, send: int, recv: int, blocks: Sequence[ByteBlock]) -> Callable[[], bool]:
        number = self.queue.exchange(self.communicator, send, recv, blocks)
        return lambda: bool(self.queue.has_done(number))

    def _parts(self, nbytes: int) -> Any:
        raise NotImplementedError

    def _reduce(self, *arguments: Any) -> None:
        raise NotImplementedError

    def copy(self, source: Buffer, target: Buffer) -> None:
        raise NotImplementedError

    def _give_up(self) -> None:
        self.communicator.abort()

    def close(self) -> None:
        self.communicator.abort()
