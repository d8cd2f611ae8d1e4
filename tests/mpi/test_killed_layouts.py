"""A rank is killed in mid-step in every layout: all end soon by themselves, and leave no file and no shared memory."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from launch import finish, flavour, process_of_rank, start

RANKS = 4
KILLED = 1
LAYOUTS = [
    "--ring 4",
    "--kv-gather 4",
    "--ring 2 --ulysses 2",
    "--tp 4",
    "--dp 4 --num-images 4",
    "--cfg 2 --ulysses 2 --negative-prompt red --true-cfg-scale 2",
    "--ulysses 4 --shard-weights",
]


@pytest.mark.slow
@pytest.mark.skipif(flavour() != "mpich", reason="ranks are found by MPICH's environment variables")
@pytest.mark.parametrize("backend", ["shm", "mpi"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_killed_in_mid_step_ends_all(tmp_path: Path, layout: str, backend: str) -> None:
    """Without the launcher's own clean-up."""
    check_killed(tmp_path, [*layout.split(), "--backend", backend, "--steps", "100000"])


@pytest.mark.slow
@pytest.mark.skipif(flavour() != "mpich", reason="ranks are found by MPICH's environment variables")
@pytest.mark.parametrize("tiling", [[], ["--vae-tiling", "96"]], ids=["rows", "tiles"])
def test_a_rank_killed_while_pictures_are_decoded_ends_all(tmp_path: Path, tiling: list[str]) -> None:
    many = ["--steps", "1", "--num-images", "16", "--width", "256", "--height", "256"]
    check_killed(tmp_path, ["--ulysses", "4", "--vae-ranks", "4", *many, *tiling], "decode")


def check_killed(folder: Path, flags: list[str], bar: str = "steps") -> None:
    """Kill a rank once the progress bar of that name is seen."""
    mark, before = f"{os.getpid()} {folder}", shared_memory()
    command = ["generate", "-p", "a cat", "--seed", "1", "--threads", "1", *flags]
    files = ["-o", folder / "a.png", "--latents-out", folder / "l.npy"]
    launched = start(
        RANKS, "edgedit", *command, *files, env={"EDGEDIT_MARK": mark}, mpiexec_args=["-disable-auto-cleanup"]
    )
    assert launched.stderr is not None
    seen = ""
    while bar not in seen and (letter := launched.stderr.read(1)):
        seen += letter
    assert bar in seen, seen
    killed = process_of_rank(KILLED, mark)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    killed_s = time.monotonic()
    done = finish(launched, timeout=60)
    assert time.monotonic() - killed_s < 10
    assert done.returncode != 0
    assert list(folder.iterdir()) == []
    assert all(process_of_rank(rank, mark) is None for rank in range(RANKS))
    assert shared_memory() <= before


def shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {name for name in os.listdir(folder) if "edgedit" in name} if folder.exists() else set()
