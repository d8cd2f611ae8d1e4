"""Making a context together, and parting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from launch import check_ok, environment, flavour, mpirun

PROGRAM = Path(__file__).parent / "programs" / "joining.py"


def test_contexts_can_be_made_and_closed_again_and_again() -> None:
    assert check_ok(mpirun(2, PROGRAM, "many")).count("end") == 2


def test_a_context_left_open_is_closed_at_the_end_of_the_program() -> None:
    assert check_ok(mpirun(2, PROGRAM, "open")).count("end") == 2


def test_ranks_with_different_settings_are_refused_naming_the_setting() -> None:
    result = mpirun(2, PROGRAM, "settings")
    assert result.returncode != 0
    assert "'cfg_degree = 1' on rank 0, 'cfg_degree = 2' on rank 1" in result.stderr


def test_ranks_agree_on_the_kernels_of_the_slowest() -> None:
    assert check_ok(mpirun(2, PROGRAM, "kernels of the slowest")).count("kernels portable") == 2


def test_kernels_that_a_rank_cannot_run_are_refused_naming_it() -> None:
    result = mpirun(2, PROGRAM, "kernels by name")
    assert result.returncode != 0
    assert "rank 1: kernels 'avx2': this processor cannot run them; legal here: portable, ggml" in result.stderr


def test_a_backend_that_is_refused_ends_all_ranks_with_the_reason() -> None:
    result = mpirun(2, PROGRAM, "no shared memory")
    assert result.returncode != 0
    assert "backend shm: the ranks cannot share memory: it is full" in result.stderr
    assert "AttributeError" not in result.stderr


def test_a_rank_that_cannot_make_a_group_ends_all_others() -> None:
    result = mpirun(2, PROGRAM, "no group")
    assert result.returncode != 0
    assert "no memory for a group" in result.stderr


def test_a_launch_in_which_a_rank_does_not_start_mpi_ends() -> None:
    result = mpirun(2, PROGRAM, "absent")
    assert result.returncode != 0
    assert "Timeout (0:00:06)!" in result.stderr


def test_a_rank_that_makes_no_context_is_named() -> None:
    result = mpirun(2, PROGRAM, "absent after the start of MPI")
    assert result.returncode != 0
    assert "ranks [1] did not create their ParallelContext within 6 s" in result.stderr


def test_an_mpi_that_does_not_belong_to_the_launcher_is_refused() -> None:
    if flavour() == "openmpi":
        alien = {"PMI_RANK": "1", "PMI_SIZE": "2"}
    else:
        alien = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    result = subprocess.run(
        [sys.executable, str(PROGRAM), "nothing"], env=environment(alien), capture_output=True, text=True, timeout=60
    )
    assert result.returncode != 0
    for words in ("mpi4py is built for", "launcher started 2 ranks", "every rank believes it is alone"):
        assert words in result.stderr
