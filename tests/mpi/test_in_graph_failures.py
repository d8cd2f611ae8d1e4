"""One rank misbehaves while graphs run whole: all end soon, and name rank, step, collective and tensor."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from failure_launch import Launch
from launch import check_ok, finish, start

both_backends = pytest.mark.parametrize("backend", ["mpi", "shm"])


@pytest.fixture
def four_ranks(tmp_path: Path) -> Launch:
    return Launch("4x1", tmp_path, "failing_graph.py")


@pytest.fixture
def three_ranks(tmp_path: Path) -> Launch:
    return Launch("3x1", tmp_path, "failing_graph.py")


@pytest.fixture(autouse=True)
def check_shared_memory():
    """Nothing with a name is left in shared memory, however the ranks ended."""
    before = shared_files()
    yield
    assert shared_files() <= before


def shared_files() -> set[str]:
    folder = Path("/dev/shm")
    return {name for name in os.listdir(folder) if "edgedit" in name} if folder.exists() else set()


@both_backends
def test_the_loop_itself_is_sound(three_ranks: Launch, backend: str) -> None:
    check_ok(three_ranks.run("nothing", f"backend={backend}"))
    assert all("end" in text for text in three_ranks.outputs())


@both_backends
def test_a_rank_killed_in_mid_step_ends_all(four_ranks: Launch, backend: str) -> None:
    errors = four_ranks.fail("kill", f"backend={backend}", sheltered=True)
    assert sorted(errors) == [0, 1, 2]
    for message in errors.values():
        for word in ("step 3 of denoise", "all_reduce #", "hidden' on ulysses", "rank 3 died"):
            assert word in message


@pytest.mark.parametrize(
    ("how", "words"),
    [("raise", "RuntimeError: out of luck"), ("memory", "MemoryError"), ("interrupt", "KeyboardInterrupt")],
)
def test_an_error_of_one_rank_ends_all(three_ranks: Launch, how: str, words: str) -> None:
    errors = three_ranks.fail(how, "backend=shm")
    assert words in errors[2]
    for rank in errors.keys() - {2}:
        assert "rank 2 failed: step 3 of denoise" in errors[rank]
        assert words in errors[rank]


@pytest.mark.parametrize(("how", "words"), [("longer plan", "layer8.hidden"), ("other type", "dtype=bf16")])
def test_an_unlike_plan_is_reported_before_the_first_step(three_ranks: Launch, how: str, words: str) -> None:
    errors = three_ranks.fail(how, "backend=shm")
    assert errors
    for message in errors.values():
        assert words in message
        assert "the ranks disagree on schedule of steps" in message


@pytest.mark.parametrize(
    ("how", "backend"), [("dtype", "shm"), ("extra on ulysses", "mpi"), ("extra on world", "shm")]
)
def test_a_call_in_place_of_a_step_is_reported_at_that_collective(
    three_ranks: Launch, how: str, backend: str
) -> None:
    errors = three_ranks.fail(how, f"backend={backend}")
    assert errors
    for message in errors.values():
        for word in ("step 3 of denoise", "rank 2 waits in all_gather", "hidden' on ulysses"):
            assert word in message


def test_one_run_more_is_reported_when_the_peers_have_closed(three_ranks: Launch) -> None:
    errors = three_ranks.fail("one run more", "backend=shm")
    for word in ("step 6 of denoise", "layer0.hidden", "has closed its context without making this call"):
        assert word in errors[2]


@both_backends
def test_an_interrupt_reaches_a_rank_that_is_blocked_inside_ggml(three_ranks: Launch, backend: str) -> None:
    launched = start(
        3,
        three_ranks.program,
        three_ranks.log_dir,
        three_ranks.layout,
        "wait for signal",
        f"backend={backend}",
    )
    while len(pids := three_ranks.pids()) < 3 and launched.poll() is None:
        time.sleep(0.05)
    time.sleep(3)  # by then ranks 0 and 1 wait for rank 2, which sleeps
    began = time.monotonic()
    os.kill(int(three_ranks.output(0).split()[1]), 2)
    assert len(pids) == 3
    assert finish(launched, 20).returncode != 0
    assert time.monotonic() - began < 10
    assert "KeyboardInterrupt" in three_ranks.errors()[0]
    assert "step 3 of denoise" in three_ranks.errors()[1]
