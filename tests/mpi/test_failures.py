"""One rank misbehaves at step 3 of a loop of collectives: all end soon, with a message, and nothing is left running."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from failure_launch import NO_CLEANUP, Launch
from launch import check_ok, finish, start


@pytest.fixture
def four_ranks(tmp_path: Path) -> Launch:
    return Launch("2x2", tmp_path)


@pytest.fixture
def three_ranks(tmp_path: Path) -> Launch:
    return Launch("3x1", tmp_path)


def test_the_loop_itself_is_sound(four_ranks: Launch) -> None:
    check_ok(four_ranks.run("nothing"))
    assert all("end" in text for text in four_ranks.outputs())


@pytest.mark.parametrize("mpiexec_args", [(), NO_CLEANUP], ids=["launcher cleans up", "launcher does not"])
def test_a_killed_rank_ends_all(four_ranks: Launch, mpiexec_args: tuple[str, ...]) -> None:
    four_ranks.fail("kill", mpiexec_args=mpiexec_args)


@pytest.mark.parametrize("backend", ["mpi", "shm"])
def test_a_killed_rank_is_named_by_all_others(four_ranks: Launch, backend: str) -> None:
    errors = four_ranks.fail("kill", f"backend={backend}", sheltered=True)
    assert sorted(errors) == [0, 1, 2]
    for message in errors.values():
        for word in ("rank 3 died", "step 3 of denoise", "all_gather #4 'hidden'"):
            assert word in message


def test_a_killed_rank_ends_ranks_that_are_inside_a_native_call(four_ranks: Launch) -> None:
    errors = four_ranks.fail("busy", sheltered=True)
    assert errors
    for message in errors.values():
        assert "step 3 of denoise: rank 3 died" in message
        assert "this rank is busy" in message


def test_a_stopped_rank_ends_the_others_after_the_timeout(four_ranks: Launch) -> None:
    errors = four_ranks.fail("stop", "timeout_s=2")
    errors.pop(3, None)  # a launcher may wake it up to end it
    assert errors
    for message in errors.values():
        assert "rank 3 showed no sign of life for 2 s" in message
        assert "all_gather #4 'hidden'" in message


def test_a_slow_rank_is_waited_for_longer_than_the_timeout(four_ranks: Launch) -> None:
    check_ok(four_ranks.run("slow", "timeout_s=2", env={"SLOW_S": "5"}))
    assert all("end" in text for text in four_ranks.outputs())


def test_ranks_that_are_stopped_and_continued_together_go_on(tmp_path: Path) -> None:
    two_ranks = Launch("2x1", tmp_path)
    launched = start(2, two_ranks.program, tmp_path, "2x1", "slow", "timeout_s=2", env={"SLOW_S": "4"})
    while len(pids := two_ranks.pids()) < 2 and launched.poll() is None:
        time.sleep(0.05)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(3)
    check_ok(finish(launched, 60))
    assert all("end" in text for text in two_ranks.outputs())


@pytest.mark.parametrize("mpiexec_args", [(), NO_CLEANUP], ids=["launcher cleans up", "launcher does not"])
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", ["RuntimeError: out of luck", "Traceback"]),
        ("memory", ["MemoryError"]),
        ("interrupt", ["KeyboardInterrupt"]),
        ("terminate", ["terminated by SIGTERM"]),
    ],
)
def test_an_uncaught_error_of_one_rank_ends_all(
    four_ranks: Launch, how: str, words: list[str], mpiexec_args: tuple[str, ...]
) -> None:
    errors = four_ranks.fail(how, mpiexec_args=mpiexec_args)
    for word in words:
        assert word in errors[3]
    for rank in errors.keys() - {3}:
        for word in ("rank 3 failed: step 3 of denoise", words[0], "all_gather #4 'hidden'"):
            assert word in errors[rank]


def test_a_rank_that_exits_without_closing_its_context_ends_all(four_ranks: Launch) -> None:
    errors = four_ranks.fail("exit")
    assert any(
        "rank 3 has closed its context without making this call" in message for message in errors.values()
    )


@pytest.mark.parametrize("axis", ["ulysses", "cfg", "world"])
def test_one_collective_too_many_is_reported_at_that_collective(four_ranks: Launch, axis: str) -> None:
    errors = four_ranks.fail(f"extra on {axis}")
    assert errors
    for message in errors.values():
        assert "'one too many'" in message
        assert "rank 3" in message


def test_one_collective_too_many_is_reported_when_the_peers_have_closed(four_ranks: Launch) -> None:
    errors = four_ranks.fail("extra at the end")
    assert re.search(r"'one too many' on world: rank [012] has closed its context", errors[3])


def test_a_disagreement_on_the_dtype_is_named_by_every_rank_in_seconds(three_ranks: Launch) -> None:
    check_ok(three_ranks.run("dtype", "catch=yes"))
    for message in three_ranks.outputs():
        caught = re.search(r"caught CollectiveError after ([\d.]+) s", message)
        assert caught is not None
        assert float(caught[1]) < 5
        for word in ("rank 0", "f32", "rank 2", "bf16", "'hidden'", "step 3 of denoise"):
            assert word in message


def test_ranks_outside_the_group_that_disagrees_end_as_well(four_ranks: Launch) -> None:
    four_ranks.fail("dtype", "catch=yes")
    for message in four_ranks.outputs():
        assert (
            "rank 2 calls all_gather #4 'hidden' of f32, rank 3 calls all_gather #4 'hidden' of bf16"
            in message
        )


def test_after_a_disagreement_a_new_context_can_be_made(three_ranks: Launch) -> None:
    check_ok(three_ranks.run("dtype", "catch=again"))
    assert all("end" in text for text in three_ranks.outputs())


def test_a_caught_death_still_ends_the_launch_with_a_status(four_ranks: Launch) -> None:
    four_ranks.fail("kill", "catch=yes", sheltered=True)
    for message in four_ranks.outputs()[:3]:
        assert "caught PeerLostError" in message
        assert "end" in message
