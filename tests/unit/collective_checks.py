"""What every collective has to do on every axis of a context, whatever backend carries it.

Data depends on sender, receiver and position, so that a swapped peer or a shifted block cannot pass; moves are
compared exactly. The expected values come from the counts alone, never from another collective.
"""

from __future__ import annotations

import numpy as np

from edgedit import ParallelContext, dtypes
from edgedit.parallel import Buffer, ProcessGroup

AXES = ("world", "ulysses", "cfg", "dp")
DTYPES = ("f32", "f16", "bf16", "i32", "u8", "i8", "f64", "i64")


def block(sender: int, receiver: int, count: int, dtype: str, salt: int = 0) -> np.ndarray:
    """What world rank `sender` sends to `receiver`: [count], small integers that every dtype holds."""
    values = (7 * sender + 3 * receiver + salt + np.arange(count)) % 101
    return values.astype(dtypes.to_numpy(dtype))


def uneven(sender: int, receiver: int, salt: int) -> int:
    """Elements that `sender` has for `receiver`: a count of 0 now and then, and no two ranks alike."""
    return (5 * sender + 2 * receiver + salt) % 4 * (sender + 1)


def check_all_to_all(group: ProcessGroup, dtype: str, salt: int) -> None:
    me = group.ranks[group.rank]
    send_counts = [uneven(me, peer, salt) for peer in group.ranks]
    recv_counts = [uneven(peer, me, salt) for peer in group.ranks]
    send = np.concatenate(
        [block(me, peer, count, dtype) for peer, count in zip(group.ranks, send_counts, strict=True)]
    )
    expected = np.concatenate(
        [block(peer, me, count, dtype) for peer, count in zip(group.ranks, recv_counts, strict=True)]
    )
    recv = np.full(len(expected) + 2, 99, send.dtype)
    before = group.bytes_sent
    group.all_to_all(
        Buffer.of(send, dtype),
        Buffer.of(recv, dtype),
        send_counts,
        recv_counts,
        label="blocks",
        verified=salt > 1,
    )
    np.testing.assert_array_equal(recv[:-2], expected)
    np.testing.assert_array_equal(recv[-2:], 99)  # nothing past the counts
    to_others = sum(count for peer, count in zip(group.ranks, send_counts, strict=True) if peer != me)
    assert group.bytes_sent - before == to_others * dtypes.itemsize(dtype)


def check_all_gather(group: ProcessGroup, dtype: str, salt: int) -> None:
    me = group.ranks[group.rank]
    counts = [uneven(peer, 0, salt) for peer in group.ranks]
    send = block(me, 0, counts[group.rank], dtype)
    expected = np.concatenate([block(peer, 0, n, dtype) for peer, n in zip(group.ranks, counts, strict=True)])
    recv = np.empty_like(expected)
    before = group.bytes_sent
    group.all_gather(Buffer.of(send, dtype), Buffer.of(recv, dtype), counts)
    np.testing.assert_array_equal(recv, expected)
    assert group.bytes_sent - before == send.nbytes * (group.size - 1)


def check_broadcast(group: ProcessGroup, dtype: str, salt: int) -> None:
    for root in range(group.size):
        expected = block(group.ranks[root], 0, 5 + salt, dtype)
        data = expected.copy() if group.rank == root else np.zeros_like(expected)
        group.broadcast(Buffer.of(data, dtype), root)
        np.testing.assert_array_equal(data, expected)


def check_all_reduce(group: ProcessGroup, dtype: str, salt: int) -> None:
    count = 3 * group.size - 1 + salt
    sources = [block(rank, 0, count, dtype, salt) % 8 for rank in group.ranks]
    if dtype == "bf16":
        values = [dtypes.f32_to_bf16(source.astype(np.float32)) for source in sources]
    else:
        values = sources
    for op, reduce in (("sum", np.sum), ("max", np.max), ("min", np.min)):
        recv = np.empty_like(values[0])
        group.all_reduce(Buffer.of(values[group.rank], dtype), Buffer.of(recv, dtype), op)
        expected = reduce(np.stack(sources).astype(np.float64), axis=0)
        got = dtypes.bf16_to_f32(recv) if dtype == "bf16" else recv
        np.testing.assert_array_equal(got.astype(np.float64), expected)


def check_reduction_order(group: ProcessGroup) -> None:
    """Numbers whose f32 sum depends on the order: every rank has the bits of the sum in rank order."""
    count = 4 * group.size + 1
    parts = [
        np.random.default_rng(rank).standard_normal(count).astype(np.float32) * 10.0 ** (rank % 3 * 4)
        for rank in group.ranks
    ]
    parts = [part.astype(np.float32) for part in parts]
    expected = parts[0].copy()
    for part in parts[1:]:
        expected = (expected + part).astype(np.float32)
    recv = np.empty_like(expected)
    group.all_reduce(Buffer.of(parts[group.rank]), Buffer.of(recv))
    assert recv.tobytes() == expected.tobytes()


def check_ring(group: ProcessGroup, dtype: str) -> None:
    """Two messages of one tag to the next rank, waited for in the other order."""
    if group.size == 1:
        return
    following, preceding = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    me, source = group.ranks[group.rank], group.ranks[preceding]
    outgoing = [block(me, 0, 6, dtype, salt) for salt in (1, 2)]
    incoming = [np.zeros_like(data) for data in outgoing]
    recvs = [group.recv_async(Buffer.of(data, dtype), preceding, tag=3) for data in incoming]
    sends = [group.send_async(Buffer.of(data, dtype), following, tag=3) for data in outgoing]
    for work in (*reversed(recvs), *sends):
        work.wait()
    for salt, data in zip((1, 2), incoming, strict=True):
        np.testing.assert_array_equal(data, block(source, 0, 6, dtype, salt))


def check_overlap(group: ProcessGroup) -> None:
    """Two collectives under way at once, finished in the other order."""
    me, count = group.ranks[group.rank], 1000
    counts = [count] * group.size
    gathered = np.empty(count * group.size, np.float32)
    moved = np.empty(count * group.size, np.float32)
    own = block(me, 0, count, "f32", 5)
    send = np.concatenate([block(me, peer, count, "f32") for peer in group.ranks])
    first = group.all_gather_async(Buffer.of(own), Buffer.of(gathered), label="first")
    second = group.all_to_all_async(Buffer.of(send), Buffer.of(moved), counts, counts, label="second")
    second.wait()
    while not first.is_done():
        pass
    first.wait()
    np.testing.assert_array_equal(
        gathered, np.concatenate([block(peer, 0, count, "f32", 5) for peer in group.ranks])
    )
    np.testing.assert_array_equal(
        moved, np.concatenate([block(peer, me, count, "f32") for peer in group.ranks])
    )


def check_control(context: ParallelContext) -> None:
    group = context.group("world")
    before = group.bytes_sent
    texts = [f"rank {rank}".encode() * rank for rank in range(group.size)]
    assert group.exchange(texts[group.rank]) == texts
    root = group.size - 1
    assert context.broadcast_object({"seed": context.rank}, root) == {"seed": root}
    context.agree("lines", ["one", "two"])
    context.agree("lines of an axis", [str(context.coords["cfg"])], axis="ulysses")
    assert group.bytes_sent == before


def check_everything(context: ParallelContext) -> int:
    """All checks on all axes; returns how many groups of more than one rank took part."""
    for axis in AXES:
        group = context.group(axis)
        assert group.ranks == context.mesh.group_of(axis, context.rank)
        for salt, dtype in enumerate(DTYPES):
            check_all_to_all(group, dtype, salt % 4)
            check_all_gather(group, dtype, salt % 4)
            check_broadcast(group, dtype, salt % 3)
            check_all_reduce(group, dtype, salt % 3)
        check_reduction_order(group)
        check_ring(group, "f16")
        check_overlap(group)
        group.barrier()
    check_control(context)
    return sum(context.group(axis).size > 1 for axis in AXES)
