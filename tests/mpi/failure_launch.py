"""Launches of programs in which one rank misbehaves: what every rank wrote, and whether all ended in time."""

from __future__ import annotations

import math
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from launch import flavour, mpirun

SECONDS = 10  # within which all ranks have to be gone
START_S = 5  # what a busy machine may take to start Python on all ranks
NO_CLEANUP = ("-disable-auto-cleanup",)
SHELTERED = Path(__file__).parent / "programs" / "sheltered.py"


class Launch:
    """A run of the program, and what each of its ranks wrote."""

    def __init__(self, layout: str, log_dir: Path, program: str = "failing.py") -> None:
        self.layout = layout
        self.program = Path(__file__).parent / "programs" / program
        self.num_ranks = math.prod(map(int, layout.split("x")))
        self.log_dir = log_dir

    def run(
        self, how: str, *options: str, sheltered: bool = False, **launching: Any
    ) -> subprocess.CompletedProcess[str]:
        programs = (SHELTERED, self.program) if sheltered else (self.program,)
        return mpirun(self.num_ranks, *programs, self.log_dir, self.layout, how, *options, **launching)

    def output(self, rank: int) -> str:
        path = self.log_dir / f"{rank}.txt"
        return path.read_text() if path.exists() else ""

    def outputs(self) -> list[str]:
        return [self.output(rank) for rank in range(self.num_ranks)]

    def pids(self) -> list[int]:
        return [int(pid) for text in self.outputs() for pid in re.findall(r"^pid (\d+)$", text, re.MULTILINE)]

    def errors(self) -> dict[int, str]:
        """What the ranks said of the failure; a rank may be ended by the others before it says anything."""
        found = {}
        for rank, text in enumerate(self.outputs()):
            lines = re.findall(rf"\[rank {rank}/{self.num_ranks}\] .*", text)
            if lines:
                found[rank] = "\n".join(lines)
        return found

    def fail(
        self, how: str, *options: str, mpiexec_args: tuple[str, ...] = (), sheltered: bool = False
    ) -> dict[int, str]:
        """Run to a failure: in time, with a status that is not 0, leaving no process behind. Returns `errors`.

        `sheltered`: the launcher does not see a rank die, so that it is the ranks themselves that have to.
        """
        if mpiexec_args == NO_CLEANUP and flavour() != "mpich":
            pytest.skip("only Hydra's clean-up can be switched off")
        deadline = time.monotonic() + SECONDS + START_S
        result = self.run(how, *options, mpiexec_args=mpiexec_args, sheltered=sheltered, timeout=60)
        while (left := [pid for pid in self.pids() if is_running(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        shown = "\n".join([result.stdout, result.stderr, *self.outputs()])
        assert result.returncode != 0, shown
        assert time.monotonic() < deadline, shown
        assert len(self.pids()) == self.num_ranks, shown
        assert not left, shown
        return self.errors()


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
