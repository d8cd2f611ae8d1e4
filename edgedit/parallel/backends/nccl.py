"""Groups that move device memory by NCCL, through CuPy. The pointers are those of ggml's own buffers.

Every collective is one NCCL group of sends and receives of bytes, so that counts may differ from peer to peer and any
element type will do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from edgedit.errors import EdgeditError
from edgedit.parallel import cuda
from edgedit.parallel.backends.device import DeviceGroup
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.byte_blocks import ByteBlock
from edgedit.parallel.monitor import Monitor

_ID_NBYTES = 128
_DEVICE_TO_DEVICE = 3  # cudaMemcpyDeviceToDevice


class NcclGroup(DeviceGroup):
    """A group with an NCCL communicator, whose unique id is handed round by MPI.

    Raises EdgeditError where CuPy, NCCL or a device is missing.
    """

    def __init__(
        self, name: str, ranks: Sequence[int], world_rank: int, monitor: Monitor, world_comm: Any, device: int,
        timeout_s: float,
    ) -> None:  # fmt: skip
        super().__init__(name, ranks, world_rank, monitor, world_comm, device, timeout_s)
        self._cupy, self._nccl = cuda.import_cupy()
        own = _as_bytes(self._nccl.get_unique_id()) if self.rank == 0 else b""
        # CuPy's constructor blocks until all ranks are in it: this exchange shows that they are on their way.
        unique_id = self.exchange(own, label="NCCL unique id")[0]
        with self._cupy.cuda.Device(device):
            self._communicator = self._nccl.NcclCommunicator(self.size, _as_given(unique_id), self.rank)
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._native: Any = None

    def native_channel(self, slot_nbytes: int) -> Any:
        # NCCL has no slots: one communicator serves every plan.
        if self._native is None:
            extension = cuda.usable_extension()
            library = cuda.nccl_library()
            own = extension.nccl_unique_id(library) if self.rank == 0 else b""
            unique_id = self.exchange(own, label="NCCL unique id of the device executor")[0]
            try:
                self._native = extension.Communicator(
                    library, unique_id, self.rank, self.size, self.device, self.timeout_s, self._in_trouble
                )
            except extension.DeviceError as error:
                raise self._monitor.failed(
                    EdgeditError(self._monitor.describe(None, f"NCCL: {error}"))
                ) from error
        return self._native

    def close(self) -> None:
        if self._native is not None:
            self._native.abort()
        self._communicator.destroy()
        super().close()

    def copy(self, source: Buffer, target: Buffer) -> None:
        runtime = self._cupy.cuda.runtime
        with self._cupy.cuda.Device(self.device):
            runtime.memcpy(target.pointer, source.pointer, source.nbytes, _DEVICE_TO_DEVICE)
            runtime.deviceSynchronize()  # a copy within the device returns at once

    def _in_trouble(self) -> bool:
        return self._monitor.trouble() is not None

    def _exchange(self, send: int, recv: int, blocks: Sequence[ByteBlock]) -> Callable[[], bool]:
        with self._cupy.cuda.Device(self.device):
            stream = self._stream.ptr
            from_own, _, to_own, nbytes = blocks[self.rank]
            if nbytes and send + from_own != recv + to_own:
                self._cupy.cuda.runtime.memcpyAsync(
                    recv + to_own, send + from_own, nbytes, _DEVICE_TO_DEVICE, stream
                )
            self._nccl.groupStart()
            try:
                # Every rank starts with its neighbour, so that no rank is everyone's first target.
                for shift in range(1, self.size):
                    target, source = (self.rank + shift) % self.size, (self.rank - shift) % self.size
                    offset, nbytes, _, _ = blocks[target]
                    if nbytes:
                        self._communicator.send(send + offset, nbytes, self._nccl.NCCL_UINT8, target, stream)
                    _, _, offset, nbytes = blocks[source]
                    if nbytes:
                        self._communicator.recv(recv + offset, nbytes, self._nccl.NCCL_UINT8, source, stream)
            finally:
                self._nccl.groupEnd()
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(self._stream)

        def ready() -> bool:
            try:
                self._communicator.check_async_error()
                return bool(event.done)
            except (self._nccl.NcclError, self._cupy.cuda.runtime.CUDARuntimeError) as error:
                raise EdgeditError(f"NCCL: {error}") from error

        return ready

    def _parts(self, nbytes: int) -> tuple[Any, int]:
        with self._cupy.cuda.Device(self.device):
            parts = self._cupy.empty(max(1, nbytes), self._cupy.uint8)
        return parts, parts.data.ptr

    def _reduce(self, parts: Any, recv: int, count: int, dtype: str, op: str) -> None:
        if not count:
            return
        xp = self._cupy
        combine = {"sum": xp.add, "max": xp.maximum, "min": xp.minimum}[op]
        with xp.cuda.Device(self.device), self._stream:
            element = {"f32": xp.float32, "f16": xp.float16, "bf16": xp.uint16}[dtype]
            rows = parts.view(element).reshape(self.size, count)
            total = _widened(xp, rows[0], dtype)
            for row in rows[1:]:
                total = combine(total, _widened(xp, row, dtype))
            result = _narrowed(xp, total, dtype)
            xp.cuda.runtime.memcpyAsync(
                recv, result.data.ptr, result.nbytes, _DEVICE_TO_DEVICE, self._stream.ptr
            )
            # CuPy hands memory that is freed on this stream out again on this stream only.

    def _give_up(self) -> None:
        self._communicator.abort()
        if self._native is not None:
            self._native.abort()


def _widened(xp: Any, values: Any, dtype: str) -> Any:
    if dtype == "bf16":
        return (values.astype(xp.uint32) << 16).view(xp.float32)
    return values.astype(xp.float32)


def _narrowed(xp: Any, values: Any, dtype: str) -> Any:
    """Rounded to the nearest, ties to even; NaN stays NaN."""
    if dtype != "bf16":
        return values.astype({"f32": xp.float32, "f16": xp.float16}[dtype])
    bits = values.view(xp.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return xp.where(xp.isnan(values), (bits >> 16) | 0x40, rounded).astype(xp.uint16)


def _as_bytes(unique_id: Any) -> bytes:
    """CuPy 13 gives the id as a tuple of signed characters, later ones as bytes; the first byte tells which."""
    if isinstance(unique_id, bytes):
        return b"b" + unique_id
    return b"t" + struct.pack(f"{_ID_NBYTES}b", *unique_id)


def _as_given(data: bytes) -> Any:
    return data[1:] if data[:1] == b"b" else struct.unpack(f"{_ID_NBYTES}b", data[1:])
