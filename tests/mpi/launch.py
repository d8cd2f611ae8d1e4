"""Starts programs under mpiexec for the tests."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def mpiexec_path() -> str | None:
    """The mpiexec of this Python's environment, otherwise that of PATH."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


@functools.cache
def flavour() -> str:
    """`mpich`, `openmpi` or `other`: which launcher that is."""
    path = mpiexec_path()
    if path is None:
        return "other"
    version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout
    if "Open MPI" in version or "OpenRTE" in version or "PRRTE" in version:
        return "openmpi"
    return "mpich" if "HYDRA" in version.upper() else "other"


def command(
    num_ranks: int, program: str | Path, *args: object, mpiexec_args: Sequence[str] = ()
) -> list[str]:
    """The command line that runs a Python file, or a module name, as `num_ranks` ranks."""
    path = mpiexec_path()
    assert path is not None, "no mpiexec"
    options = list(mpiexec_args)
    if flavour() == "openmpi":
        options += ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            options.append("--allow-run-as-root")
    how = [str(program)] if str(program).endswith(".py") else ["-m", str(program)]
    return [path, *options, "-n", str(num_ranks), sys.executable, *how, *map(str, args)]


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment for ranks that share cores; no variable of an outer launch comes through."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PMI", "OMPI_", "MPI_LOCAL"))
    }
    path = os.pathsep.join(filter(None, [str(REPOSITORY), ours.get("PYTHONPATH", "")]))
    ours |= {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
    }
    return {**ours, **(env or {})}


def start(
    num_ranks: int,
    program: str | Path,
    *args: object,
    env: Mapping[str, str] | None = None,
    mpiexec_args: Sequence[str] = (),
    **options: object,
) -> subprocess.Popen[str]:
    """Start a launch in a process group of its own; `options` go to Popen."""
    return subprocess.Popen(
        command(num_ranks, program, *args, mpiexec_args=mpiexec_args),
        env=environment(env), start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip


def finish(launched: subprocess.Popen[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Wait for a launch; one that hangs is killed as a whole and fails the test with what it printed."""
    try:
        out, err = launched.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(launched.pid, signal.SIGKILL)
        out, err = launched.communicate()
        raise AssertionError(
            f"{launched.args} hung for {timeout} s\n--- stdout\n{out}\n--- stderr\n{err}"
        ) from None
    return subprocess.CompletedProcess(launched.args, launched.returncode, out, err)


def mpirun(
    num_ranks: int,
    program: str | Path,
    *args: object,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
    mpiexec_args: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a Python file or module as `num_ranks` ranks to its end; returns status and both streams."""
    return finish(start(num_ranks, program, *args, env=env, mpiexec_args=mpiexec_args), timeout)


def check_ok(result: subprocess.CompletedProcess[str]) -> str:
    """The standard output of a launch that has to have succeeded."""
    assert result.returncode == 0, (
        f"{result.args} ended with {result.returncode}\n--- stdout\n{result.stdout}\n--- stderr\n{result.stderr}"
    )
    return result.stdout


def process_of_rank(rank: int, mark: str) -> int | None:
    """The process that a launch of MPICH marked with `EDGEDIT_MARK=mark` in its environment runs as `rank`."""
    wanted = {f"PMI_RANK={rank}".encode(), f"EDGEDIT_MARK={mark}".encode()}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                return int(entry.name)
        except OSError:
            continue
    return None
