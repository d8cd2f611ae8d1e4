"""Groups of MPI ranks, through mpi4py. Nothing here blocks inside MPI once the context stands.

Data moves by nonblocking point-to-point messages, one per pair of ranks: a message that is missing names the rank it
should have come from, and counts beyond what MPI can count are cut into pieces that both ends derive from the count.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from edgedit import dtypes
from edgedit.config import ParallelConfig
from edgedit.errors import CollectiveError, CollectiveTimeout, EdgeditError
from edgedit.parallel.buffer import Buffer, copy_elements
from edgedit.parallel.call import Call
from edgedit.parallel.monitor import Monitor
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.waiting import Backoff, Polled, ready_within
from edgedit.parallel.work import Work

_COLLECTIVE_TAG = (
    0  # messages between one pair of ranks keep their order, and every rank makes the same calls in order
)
_HELLO_TAG = 31_459
_NATIVE_TAG = 30_001  # beyond the tags of messages between two ranks
_HELLO_NBYTES = 16_384
# MPI counts elements in a C int.
_PIECE_COUNT = 1 << 30
# How long the control channel may take to explain an error that MPI reports.
_EXPLANATION_S = 1.5


def import_mpi() -> Any:
    """`mpi4py.MPI`. Raises `EdgeditError` where it is not installed or finds no MPI library."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise EdgeditError(
            f"backend mpi needs mpi4py and an MPI library: pip install 'edgedit[mpi]' ({error})"
        ) from error
    return MPI


@contextlib.contextmanager
def start_limit(timeout_s: float) -> Iterator[None]:
    """End this process, showing where it stood, should the start of MPI inside take longer.

    Starting MPI waits for every rank without letting Python run, so only a thread of the C library can watch it.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def world(config: ParallelConfig) -> Any:
    """The MPI world, checked against the launcher. Raises `EdgeditError` where the two do not belong together."""
    MPI = import_mpi()
    comm = MPI.COMM_WORLD
    if (comm.size, comm.rank) != (config.world_size, config.rank):
        library = MPI.Get_library_version().strip("\0").splitlines()[0]
        alone = " every rank believes it is alone;" if comm.size == 1 else ""
        raise EdgeditError(
            f"[rank {config.rank}/{config.world_size}] mpi4py is built for {library} and sees rank {comm.rank} of "
            f"{comm.size}, but the launcher started {config.world_size} ranks:{alone} launch with the mpiexec of that "
            f"library, or install mpi4py for the MPI of the launcher ({shlex.join(sys.orig_argv[:3])} ...)"
        )
    return comm


def meet(comm: Any, hello: dict[str, Any], timeout_s: float) -> list[dict[str, Any]]:
    """The `hello` of every rank. Raises `CollectiveTimeout` naming the ranks that do not come."""
    MPI = import_mpi()
    text = json.dumps(hello).encode()
    assert len(text) <= _HELLO_NBYTES, f"hello of {len(text)} bytes"
    inboxes = {peer: bytearray(_HELLO_NBYTES) for peer in range(comm.size) if peer != comm.rank}
    incoming = {peer: comm.Irecv([inbox, MPI.BYTE], peer, _HELLO_TAG) for peer, inbox in inboxes.items()}
    outgoing = [comm.Isend([text, MPI.BYTE], peer, _HELLO_TAG) for peer in inboxes]
    deadline, backoff = time.monotonic() + timeout_s, Backoff()
    arrived: set[int] = set()
    while len(arrived) < len(incoming) or not MPI.Request.Testall(outgoing):
        arrived |= {peer for peer in incoming.keys() - arrived if incoming[peer].Test()}
        if time.monotonic() > deadline:
            raise CollectiveTimeout(
                f"[rank {comm.rank}/{comm.size}] ranks {sorted(incoming.keys() - arrived)} did not create their "
                f"ParallelContext within {timeout_s:g} s"
            )
        backoff.pause()
    hellos = {peer: json.loads(inbox.rstrip(b"\0")) for peer, inbox in inboxes.items()}
    return [hellos.get(rank, hello) for rank in range(comm.size)]


def progress(comm: Any) -> None:
    """Let MPI move what is under way."""
    comm.Iprobe()


class MpiGroup(ProcessGroup):
    """A group with a communicator of its own. Creating it is a call that all ranks of the group make together."""

    def __init__(
        self, name: str, ranks: Sequence[int], world_rank: int, monitor: Monitor, world_comm: Any
    ) -> None:
        super().__init__(name, ranks, world_rank, monitor)
        self._mpi = import_mpi()
        members = world_comm.Get_group().Incl(self.ranks)
        self._comm = world_comm.Create_group(members)
        members.Free()
        mpi = self._mpi
        self._types = {
            "f32": mpi.FLOAT, "f16": mpi.UINT16_T, "bf16": mpi.UINT16_T, "i32": mpi.INT32_T,
            "u8": mpi.UINT8_T, "i8": mpi.INT8_T, "f64": mpi.DOUBLE, "i64": mpi.INT64_T,
        }  # fmt: skip

    def close(self) -> None:
        self._comm.Free()

    def native_transport(self) -> Any:
        """Hands native code the addresses of MPI's functions: it is built without any MPI, and so serves every one."""
        from edgedit import _native

        mpi = self._mpi
        byte_type, comm = (ctypes.c_ssize_t(mpi._handleof(x)).value for x in (mpi.BYTE, self._comm))
        return _native.mpi_transport(self.rank, self.ranks, _functions(mpi.__file__), byte_type, comm, _NATIVE_TAG)

    def _gather_records(self, call: Call, record: bytes) -> list[bytes]:
        gathered = bytearray(len(record) * self.size)
        request = self._comm.Iallgather([record, self._mpi.BYTE], [gathered, self._mpi.BYTE])
        self._work(call, [(None, request)], keep=(record, gathered)).wait()
        return [bytes(gathered[i * len(record) : (i + 1) * len(record)]) for i in range(self.size)]

    def _move(
        self, call: Call, send: Buffer, recv: Buffer, send_counts: Sequence[int], send_offsets: Sequence[int],
        recv_counts: Sequence[int],
    ) -> Work:  # fmt: skip
        recv_offsets = [sum(recv_counts[:peer]) for peer in range(self.size)]
        requests: list[tuple[int | None, Any]] = []
        # Every rank starts with its neighbour, so that no rank is everyone's first target.
        others = [(self.rank + shift) % self.size for shift in range(1, self.size)]
        for peer in reversed(others):
            for piece in self._pieces(recv, recv_offsets[peer], recv_counts[peer]):
                requests.append((peer, self._comm.Irecv(piece, peer, _COLLECTIVE_TAG)))
        for peer in others:
            for piece in self._pieces(send, send_offsets[peer], send_counts[peer]):
                requests.append((None, self._comm.Isend(piece, peer, _COLLECTIVE_TAG)))
        copy_elements(send, send_offsets[self.rank], recv, recv_offsets[self.rank], recv_counts[self.rank])
        return self._work(call, requests, keep=(send, recv))

    def _broadcast(self, call: Call, buffer: Buffer, root: int) -> Work:
        pieces = self._pieces(buffer, 0, buffer.count)
        return self._work(call, [(None, self._comm.Ibcast(piece, root)) for piece in pieces], keep=buffer)

    def _send(self, call: Call, buffer: Buffer, dst: int, tag: int, record: bytes | None) -> Work:
        requests = []
        if record is not None:
            requests.append(self._comm.Isend([record, self._mpi.BYTE], dst, 2 * tag + 1))
        for piece in self._pieces(buffer, 0, buffer.count):
            requests.append(self._comm.Isend(piece, dst, 2 * tag + 2))
        return self._work(call, [(dst, request) for request in requests], keep=(buffer, record))

    def _recv(
        self, call: Call, buffer: Buffer, src: int, tag: int, check: Callable[[bytes], None] | None
    ) -> Work:
        requests = []
        record = bytearray(Call.record_nbytes(0))
        if check is not None:
            requests.append(self._comm.Irecv([record, self._mpi.BYTE], src, 2 * tag + 1))
        for piece in self._pieces(buffer, 0, buffer.count):
            requests.append(self._comm.Irecv(piece, src, 2 * tag + 2))

        def first_done() -> None:
            if check is not None:
                check(bytes(record))

        return self._work(
            call, [(src, request) for request in requests], keep=(buffer, record), first_done=first_done
        )

    def _pieces(self, buffer: Buffer, offset: int, count: int) -> Iterator[list[Any]]:
        """mpi4py's form of a block of elements, in pieces that MPI can count."""
        width = dtypes.itemsize(buffer.dtype)
        for start in range(0, count, _PIECE_COUNT):
            length = min(_PIECE_COUNT, count - start)
            memory = self._mpi.memory.fromaddress(buffer.pointer + (offset + start) * width, length * width)
            yield [memory, length, self._types[buffer.dtype]]

    def _work(
        self, call: Call, requests: Sequence[tuple[int | None, Any]], keep: Any,
        first_done: Callable[[], None] | None = None,
    ) -> Work:  # fmt: skip
        """Work over requests, each with the peer it waits for if that is known; `keep` stays alive until the end."""
        pending = list(requests)
        first = pending[0] if pending else None

        def ready() -> bool:
            nonlocal keep, first
            if first is not None and first_done is not None:
                if not first[1].Test():
                    return False
                first_done()
            first = None
            pending[:] = [entry for entry in pending if not entry[1].Test()]
            if not pending:
                keep = None
            return not pending

        def missing() -> list[int]:
            return sorted({self.ranks[peer] for peer, _ in pending if peer is not None})

        if call.kind in ("send", "recv"):
            peers = [self.ranks[call.detail]]
        else:
            peers = [rank for rank in self.ranks if rank != self._monitor.rank]
        return Polled(call, self._monitor, peers, self._explained(call, ready), missing)

    def _explained(self, call: Call, ready: Callable[[], bool]) -> Callable[[], bool]:
        """`ready`, with MPI's own errors turned into ours; where a peer is the reason, that is what it says."""

        def guarded() -> bool:
            try:
                return ready()
            except self._mpi.Exception as error:
                ready_within(lambda: self._monitor.trouble() is not None, _EXPLANATION_S)
                trouble = self._monitor.trouble()
                if trouble is not None:
                    raise self._monitor.lost(call, trouble) from error
                reason = f"MPI: {error.Get_error_string()}"
                raise self._monitor.failed(CollectiveError(self._monitor.describe(call, reason))) from error

        return guarded


def abort(status: int) -> None:
    """End all ranks of the launch. Does not return."""
    MPI = import_mpi()
    sys.stdout.flush()
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)


@cache
def _functions(library: str) -> list[int]:
    """Addresses of the functions that native code calls."""
    loaded = ctypes.CDLL(library)
    names = ("MPI_Isend", "MPI_Irecv", "MPI_Test", "MPI_Error_string")
    return [ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0 for name in names]
