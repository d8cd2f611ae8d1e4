"""Ranks as threads: the same collectives, and the same ways to fail."""

from __future__ import annotations

import time

import numpy as np
import pytest
from collective_checks import check_everything

from edgedit import CollectiveError, EdgeditError, ParallelConfig, ParallelContext
from edgedit.errors import PeerLostError
from edgedit.parallel import Buffer


@pytest.mark.parametrize(
    ("ulysses", "cfg", "dp"), [(1, 1, 1), (2, 1, 1), (3, 1, 1), (2, 2, 1), (1, 2, 2), (5, 1, 1)]
)
def test_every_collective_moves_every_block_to_its_place(ulysses: int, cfg: int, dp: int) -> None:
    world_size = ulysses * cfg * dp
    results = ParallelContext.local(
        world_size, check_everything, ulysses_degree=ulysses, cfg_degree=cfg, dp_degree=dp
    )
    assert results == [(world_size > 1) + (ulysses > 1) + (cfg > 1) + (dp > 1)] * world_size


def test_one_rank_needs_no_peers() -> None:
    with ParallelContext(ParallelConfig()) as context:
        assert check_everything(context) == 0
        assert context.bytes_sent == 0


def gather(context: ParallelContext, dtype: type = np.float32, label: str = "hidden", count: int = 4) -> None:
    group = context.group("world")
    send = np.zeros(count, dtype)
    group.all_gather(Buffer.of(send), Buffer.of(np.empty(count * group.size, dtype)), label=label)


def errors_of(world_size: int, fn, **options) -> list[Exception]:
    """What `fn(context)` raised on each rank."""

    def run(context: ParallelContext) -> Exception | None:
        try:
            fn(context)
        except EdgeditError as error:
            return error
        return None

    return ParallelContext.local(world_size, run, **options)


def test_ranks_that_disagree_on_the_dtype_all_say_so() -> None:
    started = time.monotonic()
    errors = errors_of(3, lambda c: gather(c, np.float32 if c.rank != 1 else np.uint16))
    assert time.monotonic() - started < 5
    for rank, error in enumerate(errors):
        assert isinstance(error, CollectiveError)
        for word in (f"[rank {rank}/3]", "rank 0", "rank 1", "f32", "bf16", "hidden"):
            assert word in str(error)


@pytest.mark.parametrize("difference", ["label", "kind", "count", "root", "op"])
def test_ranks_that_make_different_calls_all_say_so(difference: str) -> None:
    def run(context: ParallelContext) -> None:
        group, odd = context.group("world"), context.rank == 1
        data, out = np.zeros(4, np.float32), np.zeros(8, np.float32)
        if difference == "label":
            gather(context, label="b" if odd else "a")
        elif difference == "kind" and odd:
            group.barrier()
        elif difference == "kind":
            gather(context)
        elif difference == "count":
            group.all_to_all(Buffer.of(out), Buffer.of(out.copy()), [2, 3], [4, 3] if odd else [2, 2])
        elif difference == "root":
            group.broadcast(Buffer.of(data), root=int(odd))
        else:
            group.all_reduce(Buffer.of(data), Buffer.of(data.copy()), "max" if odd else "sum")

    for error in errors_of(2, run):
        assert isinstance(error, CollectiveError)
        assert "rank 0" in str(error)
        assert "rank 1" in str(error)


def test_a_sender_and_a_receiver_that_disagree_both_fail() -> None:
    def run(context: ParallelContext) -> None:
        group = context.group("world")
        data = np.zeros(4, np.float32)
        if context.rank == 0:
            group.send(Buffer.of(data), 1)
            group.recv(Buffer.of(data), 1)
        else:
            group.recv(Buffer.of(np.zeros(5, np.float32)), 0)

    errors = errors_of(2, run)
    assert "rank 0 sends 4 f32 '', rank 1 expects 5 f32" in str(errors[1])
    assert isinstance(errors[0], PeerLostError)


def test_one_collective_too_many_is_reported_when_the_peers_have_left() -> None:
    def run(context: ParallelContext) -> None:
        gather(context)
        if context.rank == 0:
            gather(context, label="one too many")

    with pytest.raises(CollectiveError, match=r"'one too many'.*rank 1 has closed its context"):
        ParallelContext.local(2, run)


def test_ranks_that_wait_for_each_other_on_different_axes_are_told() -> None:
    def run(context: ParallelContext) -> None:
        axis = "world" if context.rank == 3 else "ulysses"
        group = context.group(axis)
        group.barrier(label=axis)
        context.group("world").barrier()

    errors = errors_of(4, run, ulysses_degree=2, cfg_degree=2)
    assert all(isinstance(error, CollectiveError) for error in errors)
    assert "rank 2 waits in barrier #1 'ulysses' on ulysses" in str(errors[2])
    assert "rank 3 waits in barrier #1 'world' on world" in str(errors[2])


def test_an_exception_of_one_rank_ends_the_others_with_its_message() -> None:
    def run(context: ParallelContext) -> None:
        context.note(step=2, phase="denoise")
        if context.rank == 1:
            raise KeyError("lost it")
        gather(context, label="latents")

    with pytest.raises(KeyError, match="lost it"):
        ParallelContext.local(3, run)

    seen: list[str] = []

    def watch(context: ParallelContext) -> None:
        try:
            run(context)
        except EdgeditError as error:
            seen.append(str(error))
            raise

    with pytest.raises(KeyError):
        ParallelContext.local(3, watch)
    assert len(seen) == 2
    for message in seen:
        for word in ("rank 1 failed", "KeyError", "lost it", "step 2 of denoise", "all_gather #1 'latents'"):
            assert word in message


def test_a_failed_context_is_closed() -> None:
    def run(context: ParallelContext) -> str:
        with pytest.raises(CollectiveError):
            gather(context, label=str(context.rank))
        assert context.is_closed
        with pytest.raises(CollectiveError, match="closed by an earlier failure"):
            gather(context)
        return "done"

    assert ParallelContext.local(2, run) == ["done", "done"]


def test_agree_names_the_first_line_that_differs_and_two_ranks() -> None:
    errors = errors_of(3, lambda c: c.agree("schedule", ["same", f"line of {c.rank // 2}", "more"]))
    for error in errors:
        assert "line 2 is 'line of 0' on rank 0 and 'line of 1' on rank 2" in str(error)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda g, b: g.all_gather(b(3), b(5)), ["6", "5"]),
        (lambda g, b: g.all_to_all(b(3), b(3), [1], [1]), ["1", "2 ranks"]),
        (lambda g, b: g.all_to_all(b(3), b(4), [2, 2], [2, 2]), ["4", "3"]),
        (lambda g, b: g.all_to_all(b(3), b(3), [-1, 2], [1, 1]), ["-1"]),
        (lambda g, b: g.all_to_all(b(3), b(9), [1, 1], [4, 4]), ["1 elements", "4"]),
        (lambda g, b: g.all_reduce(b(3), b(4)), ["3 f32", "4 f32"]),
        (lambda g, b: g.all_reduce(b(3), b(3), "mean"), ["mean", "sum"]),
        (lambda g, b: g.broadcast(b(3), 2), ["2", "0 to 1"]),
        (lambda g, b: g.send(b(3), g.rank), ["this rank itself"]),
        (lambda g, b: g.send(b(3), 1 - g.rank, tag=-1), ["-1", "9999"]),
    ],
)
def test_wrong_arguments_are_refused_with_both_values(call, words: list[str]) -> None:
    def run(context: ParallelContext) -> None:
        with pytest.raises(ValueError) as refused:
            call(context.group("world"), lambda count: Buffer.of(np.zeros(count, np.float32)))
        for word in words:
            assert word in str(refused.value)

    ParallelContext.local(2, run)
