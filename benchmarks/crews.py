"""Starts the ranks of edgedit and of diffusers, each on its share of this host's cores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from crew import Crew, CrewError

_HERE = Path(__file__).parent


def edgedit_crew(model: Path, ranks: int = 1, threads: int = 1, axis: str = "ulysses") -> Crew:
    """Ranks of edgedit that share `axis`; several are started by mpiexec."""
    words = [sys.executable, str(_HERE / "edgedit_rank.py"), str(model), "--threads", str(threads)]
    if ranks > 1:
        words = [*mpiexec(ranks), *words, f"--{axis}", str(ranks)]
    return Crew([(words, {})], ranks, shares(ranks, threads))


def diffusers_crew(python: str, model: Path, store: Path, ranks: int = 1, threads: int = 1) -> Crew:
    """Ranks of diffusers, run by the interpreter `python`; several find each other through the file `store`."""
    words = [python, str(_HERE / "diffusers_rank.py"), str(model), "--threads", str(threads)]
    words += ["--world-size", str(ranks), "--store", str(store), "--rank"]
    try:
        return Crew([([*words, str(rank)], {}) for rank in range(ranks)], ranks, shares(ranks, threads))
    except CrewError as error:
        raise SystemExit(f"diffusers did not start ({error}): --peer-python names one that has it") from None


def shares(ranks: int, threads: int) -> list[list[int]]:
    """For each rank, its cores of those that this process may use; ranks beyond them share the last ones."""
    cores = sorted(os.sched_getaffinity(0))
    return [cores[rank * threads :][:threads] or cores[-threads:] for rank in range(ranks)]


def mpiexec(ranks: int) -> list[str]:
    """mpiexec of this Python's environment, otherwise that of PATH; it leaves the choice of cores to the ranks."""
    beside = Path(sys.executable).parent / "mpiexec"
    path = str(beside) if beside.exists() else shutil.which("mpiexec")
    if path is None:
        raise SystemExit("no mpiexec: pip install mpich, or put an MPI on PATH")
    version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    unbound = ["--bind-to", "none"] if "Open MPI" in version or "OpenRTE" in version else []
    return [path, *unbound, "-n", str(ranks)]
