"""Groups whose ranks own a CUDA device each: device buffers move between devices, everything else through MPI."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from edgedit import dtypes
from edgedit.errors import CollectiveError, EdgeditError
from edgedit.parallel.backends.mpi import MpiGroup
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.byte_blocks import ByteBlock, broadcast_blocks, byte_blocks
from edgedit.parallel.call import REDUCE_OPS, Call
from edgedit.parallel.monitor import Monitor
from edgedit.parallel.split import array_split
from edgedit.parallel.waiting import Polled
from edgedit.parallel.work import Work


class DeviceGroup(MpiGroup):
    """A group over device `device` of each rank. Creating it is a call that all its ranks make together.

    A device buffer is one whose `device` is not "cpu". Whoever filled it has waited for the device before.
    """

    def __init__(
        self, name: str, ranks: Sequence[int], world_rank: int, monitor: Monitor, world_comm: Any, device: int,
        timeout_s: float,
    ) -> None:  # fmt: skip
        super().__init__(name, ranks, world_rank, monitor, world_comm)
        self.device = device
        self.timeout_s = timeout_s  # longest wait for the ranks to join a communicator

    # What a transport does --------------------------------------------------------------------------------------

    @abstractmethod
    def _exchange(self, send: int, recv: int, blocks: Sequence[ByteBlock]) -> Callable[[], bool]:
        """Enqueue an exchange between two addresses; returns what says whether it is over."""

    @abstractmethod
    def _reduce(self, parts: Any, recv: int, count: int, dtype: str, op: str) -> None:
        """Enqueue the reduction of `parts` [size, count] (see _parts) in rank order, behind the last exchange."""

    @abstractmethod
    def _parts(self, nbytes: int) -> tuple[Any, int]:
        """Device memory and its address."""

    @abstractmethod
    def _give_up(self) -> None:
        """End device work that waits for a peer."""

    @abstractmethod
    def copy(self, source: Buffer, target: Buffer) -> None:
        """Copy within the device, and wait for it."""

    # For the device executor ------------------------------------------------------------------------------------

    @abstractmethod
    def native_channel(self, slot_nbytes: int) -> Any:
        """A `_cuda.Channel` of the same ranks, for plans that the device executor runs; all ranks call it together.

        `slot_nbytes` is the most that a rank sends to another at once.
        """

    def watch(self, label: str, ready: Callable[[], bool], give_up: Callable[[], None]) -> Work:
        """Work that is over when `ready` says so; `give_up` is called when a rank of the world is in trouble."""
        call = Call("exchange", self._sequence, "u8", 0, label=label, group=self.name)
        return self._polled(call, ready, None, give_up)

    # ProcessGroup -----------------------------------------------------------------------------------------------

    def all_reduce_async(
        self, send: Buffer, recv: Buffer, op: str = "sum", *, label: str = "", verified: bool = False
    ) -> Work:
        if not _on_device(send, recv):
            return super().all_reduce_async(send, recv, op, label=label, verified=verified)
        if op not in REDUCE_OPS:
            raise ValueError(f"all_reduce '{label}': operation {op!r}; legal: {', '.join(REDUCE_OPS)}")
        if (send.dtype, send.count) != (recv.dtype, recv.count) or send.dtype not in ("f32", "f16", "bf16"):
            raise ValueError(
                f"all_reduce '{label}': send is {send.count} {send.dtype}, recv is {recv.count} {recv.dtype}; on a "
                f"device both are the same of f32, f16, bf16"
            )
        detail = REDUCE_OPS.index(op)
        call = Call("all_reduce", self._next(), send.dtype, send.count, detail, label=label, group=self.name)
        self._begin(call, verified)
        width = dtypes.itemsize(send.dtype)
        shares = [count * width for count in array_split(send.count, self.size)]
        own, offset = shares[self.rank], sum(shares[: self.rank])
        self.bytes_sent += sum(shares) - own + own * (self.size - 1)
        offsets = [sum(shares[:peer]) for peer in range(self.size)]
        parts, address = self._parts(own * self.size)
        chunks = [(offsets[peer], shares[peer], peer * own, own) for peer in range(self.size)]
        sums = [(offset, own, offsets[peer], shares[peer]) for peer in range(self.size)]
        self._exchange(send.pointer, address, chunks)
        self._reduce(parts, recv.pointer + offset, own // width, send.dtype, op)
        return self._polled(call, self._exchange(recv.pointer, recv.pointer, sums), (send, recv, parts))

    def _move(
        self, call: Call, send: Buffer, recv: Buffer, send_counts: Sequence[int], send_offsets: Sequence[int],
        recv_counts: Sequence[int],
    ) -> Work:  # fmt: skip
        if not _on_device(send, recv):
            return super()._move(call, send, recv, send_counts, send_offsets, recv_counts)
        blocks = byte_blocks(dtypes.itemsize(send.dtype), send_counts, send_offsets, recv_counts)
        return self._polled(call, self._exchange(send.pointer, recv.pointer, blocks), (send, recv))

    def _broadcast(self, call: Call, buffer: Buffer, root: int) -> Work:
        if not _on_device(buffer):
            return super()._broadcast(call, buffer, root)
        blocks = broadcast_blocks(buffer.nbytes, self.size, self.rank, root)
        return self._polled(call, self._exchange(buffer.pointer, buffer.pointer, blocks), buffer)

    def _send(self, call: Call, buffer: Buffer, dst: int, tag: int, record: bytes | None) -> Work:
        _refuse_device(call, buffer)
        return super()._send(call, buffer, dst, tag, record)

    def _recv(
        self, call: Call, buffer: Buffer, src: int, tag: int, check: Callable[[bytes], None] | None
    ) -> Work:
        _refuse_device(call, buffer)
        return super()._recv(call, buffer, src, tag, check)

    def _polled(
        self, call: Call, ready: Callable[[], bool], keep: Any, give_up: Callable[[], None] | None = None
    ) -> Work:
        """Work that frees the device when it cannot end any more; `keep` stays alive until then."""
        give_up = give_up or self._give_up
        peers = [rank for rank in self.ranks if rank != self._monitor.rank]

        def guarded() -> bool:
            nonlocal keep
            try:
                done = ready()
            except EdgeditError as error:
                give_up()
                raise self._monitor.failed(
                    CollectiveError(self._monitor.describe(call, str(error)))
                ) from error
            if done:
                keep = None
            return done

        return DeviceWork(call, self._monitor, peers, guarded, lambda: peers, give_up)


class DeviceWork(Polled):
    """Polled work that ends what the device does when the host stops waiting for it."""

    def __init__(
        self, call: Call, monitor: Monitor, peers: Sequence[int], ready: Callable[[], bool],
        missing: Callable[[], list[int]], give_up: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(call, monitor, peers, ready, missing)
        self._give_up = give_up

    def wait(self) -> None:
        try:
            super().wait()
        except BaseException:
            self._give_up()
            raise


def _on_device(*buffers: Buffer) -> bool:
    devices = {buffer.device for buffer in buffers if buffer.count}
    if len({device == "cpu" for device in devices}) > 1:
        raise ValueError(
            f"a collective between {' and '.join(sorted(devices))}; both buffers must be on one of them"
        )
    return bool(devices) and "cpu" not in devices


def _refuse_device(call: Call, buffer: Buffer) -> None:
    if _on_device(buffer):
        raise ValueError(
            f"{call}: messages between two ranks carry host memory, the buffer is on {buffer.device}"
        )
