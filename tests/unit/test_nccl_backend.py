"""Collectives of device buffers through NCCL: what is sent where, against counts alone. CuPy and NCCL are fakes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fake_cupy
import numpy as np
import pytest

from edgedit import ParallelContext, dtypes
from edgedit.config import ParallelConfig
from edgedit.errors import CollectiveError, EdgeditError
from edgedit.parallel import cuda
from edgedit.parallel.backends.nccl import NcclGroup
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.monitor import Monitor
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.reduce import ordered_reduce


def block(sender: int, receiver: int, count: int) -> np.ndarray:
    return (100 * sender + 10 * receiver + np.arange(count)).astype(np.float32)


def on_device(array: np.ndarray, dtype: str | None = None) -> Buffer:
    buffer = Buffer.of(array, dtype)
    return Buffer(buffer.pointer, buffer.count, buffer.dtype, "cuda:0", owner=array)


def ranks_run(
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    rank_does: Callable[[NcclGroup], Any],
    id_as_tuple: bool = False,
) -> tuple[list[Any], fake_cupy.Nccl]:
    """`rank_does(group)` on each of `size` ranks in threads; the results by rank, and the NCCL they shared."""
    cupy, nccl = fake_cupy.modules(id_as_tuple)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", nccl)
    round_of_ids: list[bytes] = [b""] * size
    meet = threading.Barrier(size)

    def plain_init(self: Any, name: str, ranks: Any, rank: int, monitor: Monitor, comm: Any) -> None:
        ProcessGroup.__init__(self, name, ranks, rank, monitor)

    def exchange(self: Any, data: bytes, *, label: str = "") -> list[bytes]:
        round_of_ids[self.rank] = data
        meet.wait(fake_cupy.TIMEOUT_S)
        return list(round_of_ids)

    monkeypatch.setattr("edgedit.parallel.backends.mpi.MpiGroup.__init__", plain_init)
    monkeypatch.setattr("edgedit.parallel.backends.mpi.MpiGroup.exchange", exchange)
    monkeypatch.setattr("edgedit.parallel.backends.mpi.MpiGroup.close", lambda self: None)
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            group = NcclGroup("ulysses", range(size), rank, Monitor(rank, size), None, device=0, timeout_s=5)
            results[rank] = rank_does(group)
            group.close()
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results, nccl


@pytest.mark.parametrize("id_as_tuple", [False, True])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_blocks_of_unequal_counts_reach_their_ranks(
    monkeypatch: pytest.MonkeyPatch, size: int, id_as_tuple: bool
) -> None:
    counts = [[(3 * source + target) % 4 for target in range(size)] for source in range(size)]

    def rank_does(group: NcclGroup) -> tuple[np.ndarray, int]:
        me = group.rank
        send = np.concatenate([block(me, peer, counts[me][peer]) for peer in range(size)])
        received = [counts[peer][me] for peer in range(size)]
        recv = np.full(sum(received) + 1, -1, np.float32)
        group.all_to_all(on_device(send), on_device(recv), counts[me], received, label="x", verified=True)
        return recv, group.bytes_sent

    results, nccl = ranks_run(monkeypatch, size, rank_does, id_as_tuple)
    for me, (recv, bytes_sent) in enumerate(results):
        wanted = np.concatenate([block(peer, me, counts[peer][me]) for peer in range(size)])
        np.testing.assert_array_equal(recv[:-1], wanted)
        assert recv[-1] == -1
        assert bytes_sent == 4 * (sum(counts[me]) - counts[me][me])
    sent = {(rank, peer): count for kind, rank, peer, count in nccl.calls if kind == "send"}
    assert sent == {
        (source, target): 4 * counts[source][target]
        for source in range(size)
        for target in range(size)
        if source != target and counts[source][target]
    }


def test_gather_and_broadcast_move_the_same_bytes_as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [2, 0, 3]

    def rank_does(group: NcclGroup) -> tuple[np.ndarray, np.ndarray]:
        me = group.rank
        send, recv = block(me, 0, max(1, lengths[me])), np.empty(5, np.float32)
        own = Buffer(send.ctypes.data, lengths[me], "f32", "cuda:0", owner=send)
        group.all_gather(own, on_device(recv), lengths, label="x", verified=True)
        told = block(me, 9, 4)
        group.broadcast(on_device(told), 2, label="x", verified=True)
        assert group.bytes_sent == 4 * lengths[me] * 2 + (32 if me == 2 else 0)
        return recv, told

    for recv, told in ranks_run(monkeypatch, 3, rank_does)[0]:
        np.testing.assert_array_equal(recv, np.concatenate([block(r, 0, n) for r, n in enumerate(lengths)]))
        np.testing.assert_array_equal(told, block(2, 9, 4))


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_sums_run_in_rank_order_as_on_the_host(monkeypatch: pytest.MonkeyPatch, dtype: str, op: str) -> None:
    values = np.random.default_rng(1).standard_normal((3, 7)).astype(np.float32)
    parts = dtypes.f32_to_bf16(values) if dtype == "bf16" else values.astype(dtypes.to_numpy(dtype))

    def rank_does(group: NcclGroup) -> tuple[np.ndarray, int]:
        send, recv = parts[group.rank].copy(), np.zeros(7, parts.dtype)
        group.all_reduce(on_device(send, dtype), on_device(recv, dtype), op, label="x", verified=True)
        return recv, group.bytes_sent

    results, _ = ranks_run(monkeypatch, 3, rank_does)
    shares = (3, 2, 2)
    for rank, (recv, bytes_sent) in enumerate(results):
        np.testing.assert_array_equal(recv, ordered_reduce(parts, dtype, op))
        assert bytes_sent == parts.itemsize * (7 - shares[rank] + 2 * shares[rank])


def test_an_error_of_nccl_ends_the_wait_and_the_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank_does(group: NcclGroup) -> str:
        send, recv = block(0, 1, 2), np.empty(2, np.float32)
        work = group.all_to_all_async(
            on_device(send), on_device(recv), [1, 1], [1, 1], label="qkv", verified=True
        )
        group._nccl.fail = "remote process exited"
        with pytest.raises(CollectiveError, match=r"'qkv' on ulysses.*remote process exited") as caught:
            work.wait()
        assert not group._communicator.is_open
        return str(caught.value)

    ranks_run(monkeypatch, 2, rank_does)


def test_buffers_of_host_and_device_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank_does(group: NcclGroup) -> None:
        send, recv = block(0, 1, 2), np.empty(2, np.float32)
        with pytest.raises(ValueError, match="between cpu and cuda:0"):
            group.all_to_all(on_device(send), Buffer.of(recv), [1, 1], [1, 1], verified=True)
        with pytest.raises(ValueError, match="host memory"):
            group.send(on_device(send), 1 - group.rank, verified=True)

    ranks_run(monkeypatch, 2, rank_does)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(EdgeditError, match=r"needs CuPy with NCCL: pip install 'edgedit\[cuda13\]'"):
        cuda.import_cupy()
    cupy, nccl = fake_cupy.modules(devices=0)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", nccl)
    with pytest.raises(EdgeditError, match="finds no CUDA device"):
        cuda.import_cupy()
    nccl.available = False
    with pytest.raises(EdgeditError, match="without NCCL"):
        cuda.import_cupy()


def test_a_context_of_devices_is_refused_before_the_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedit.config._CUDA_EXTENSION", "json")  # a module that is there
    extension = SimpleNamespace(device_count=lambda: 0, why_no_device=lambda: "driver too old")
    monkeypatch.setitem(sys.modules, "edgedit._cuda", extension)
    config = ParallelConfig(backend="nccl", world_size=2, ulysses_degree=2)
    with pytest.raises(EdgeditError, match="no CUDA device can be used: driver too old"):
        ParallelContext(config)
    extension.device_count = lambda: 1
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(EdgeditError, match="needs CuPy"):
        ParallelContext(config)


def test_the_nccl_library_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cuda.NCCL_VARIABLE, "/opt/nccl/libnccl.so.2")
    assert cuda.nccl_library() == "/opt/nccl/libnccl.so.2"
    monkeypatch.delenv(cuda.NCCL_VARIABLE)
    assert cuda.nccl_library().endswith("libnccl.so.2")
