"""CuPy and its NCCL in host memory, for ranks that are threads: exact about arguments, immediate about everything else.

A group of sends and receives moves its bytes when it ends. A call outside a group, a wrong stream, a count that does
not match the other side, all fail.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np

TIMEOUT_S = 20


class Array(np.ndarray):
    """A numpy array whose `data` has a `ptr`, as CuPy's has."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)


class Stream:
    def __init__(self, non_blocking: bool = False) -> None:
        assert non_blocking, "the legacy default stream would wait for this one"
        self.ptr = id(self)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Event:
    def __init__(self, disable_timing: bool = False) -> None:
        self.done = False

    def record(self, stream: Stream) -> None:
        self.done = True


class NcclError(RuntimeError):
    pass


class Nccl:
    """cupy.cuda.nccl"""

    NCCL_UINT8 = 1
    available = True
    NcclError = NcclError

    def __init__(self, id_as_tuple: bool) -> None:
        self.id_as_tuple = id_as_tuple
        self.mailboxes: dict[tuple[int, int], queue.Queue[bytes]] = defaultdict(queue.Queue)
        self.lock = threading.Lock()
        self.local = threading.local()
        self.calls: list[tuple[Any, ...]] = []
        self.fail: str | None = None
        nccl = self

        class NcclCommunicator:
            def __init__(self, size: int, unique_id: Any, rank: int) -> None:
                assert unique_id == nccl.get_unique_id(), "not the id of rank 0"
                self.size, self.rank = size, rank
                self.is_open = True

            def send(self, pointer: int, count: int, datatype: int, peer: int, stream: int) -> None:
                nccl._add("send", self.rank, peer, pointer, count, datatype, stream)

            def recv(self, pointer: int, count: int, datatype: int, peer: int, stream: int) -> None:
                nccl._add("recv", self.rank, peer, pointer, count, datatype, stream)

            def check_async_error(self) -> None:
                if nccl.fail:
                    raise NcclError(nccl.fail)

            def abort(self) -> None:
                self.is_open = False

            destroy = abort

        self.NcclCommunicator = NcclCommunicator

    def get_unique_id(self) -> Any:
        return tuple(range(-64, 64)) if self.id_as_tuple else bytes(range(128))

    def groupStart(self) -> None:
        self.local.group = []

    def groupEnd(self) -> None:
        group, self.local.group = self.local.group, None
        for kind, rank, peer, pointer, count in group:
            if kind == "send":
                self._box(rank, peer).put(ctypes.string_at(pointer, count))
        for kind, rank, peer, pointer, count in group:
            if kind == "recv":
                data = self._box(peer, rank).get(timeout=TIMEOUT_S)
                assert len(data) == count, (
                    f"rank {rank} expects {count} bytes of {peer}, which sends {len(data)}"
                )
                ctypes.memmove(pointer, data, count)

    def _box(self, source: int, target: int) -> queue.Queue[bytes]:
        with self.lock:
            return self.mailboxes[source, target]

    def _add(
        self, kind: str, rank: int, peer: int, pointer: int, count: int, datatype: int, stream: int
    ) -> None:
        assert self.local.group is not None, f"{kind} outside a group would wait for the other side"
        assert datatype == self.NCCL_UINT8 and count > 0 and peer != rank and stream
        self.calls.append((kind, rank, peer, count))
        self.local.group.append((kind, rank, peer, pointer, count))


def memcpy(target: int, source: int, nbytes: int, kind: int) -> None:
    assert kind == 3, "cudaMemcpyDeviceToDevice is 3"
    ctypes.memmove(target, source, nbytes)


class CUDARuntimeError(RuntimeError):
    pass


def modules(id_as_tuple: bool = False, devices: int = 1) -> tuple[Any, Nccl]:
    """(cupy, cupy.cuda.nccl)"""
    nccl = Nccl(id_as_tuple)
    cuda = SimpleNamespace(
        nccl=nccl,
        Device=lambda device: contextlib.nullcontext(),
        Stream=Stream,
        Event=Event,
        runtime=SimpleNamespace(
            memcpy=memcpy,
            memcpyAsync=lambda target, source, nbytes, kind, stream: memcpy(target, source, nbytes, kind),
            deviceSynchronize=lambda: None,
            getDeviceCount=lambda: devices,
            CUDARuntimeError=CUDARuntimeError,
        ),
    )
    names = ["add", "maximum", "minimum", "float32", "float16", "uint8", "uint16", "uint32", "isnan"]
    numpy_part = {name: getattr(np, name) for name in names}
    cupy = SimpleNamespace(
        cuda=cuda,
        empty=lambda count, dtype: np.empty(count, dtype).view(Array),
        where=lambda *arguments: np.where(*arguments).view(Array),
        **numpy_part,
    )
    return cupy, nccl
