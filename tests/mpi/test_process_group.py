"""Collectives between processes: any world size, any layout, the same checks as between threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import check_ok, mpirun

PROGRAM = Path(__file__).parent / "programs" / "collectives.py"


@pytest.mark.parametrize("backend", ["mpi", "shm"])
@pytest.mark.parametrize(
    ("ulysses", "cfg", "dp"), [(2, 1, 1), (3, 1, 1), (2, 2, 1), (1, 2, 2), (5, 1, 1), (3, 2, 1)]
)
def test_every_collective_moves_every_block_to_its_place(
    ulysses: int, cfg: int, dp: int, backend: str
) -> None:
    num_ranks = ulysses * cfg * dp
    printed = check_ok(mpirun(num_ranks, PROGRAM, backend, ulysses, cfg, dp))
    num_groups = 1 + (ulysses > 1) + (cfg > 1) + (dp > 1)
    for rank in range(num_ranks):
        assert f"rank {rank} of {num_ranks}: {num_groups} groups, backend {backend}" in printed


@pytest.mark.parametrize("piece", [1, 5])
def test_messages_longer_than_mpi_can_count_arrive_in_pieces(piece: int) -> None:
    check_ok(mpirun(3, PROGRAM, "mpi", 3, 1, 1, piece))


def test_the_group_of_a_rank_alone_copies() -> None:
    assert "rank 0 of 1: 0 groups, backend none" in check_ok(mpirun(1, PROGRAM, "auto", 1, 1, 1))


def test_ranks_of_one_host_choose_shared_memory() -> None:
    assert check_ok(mpirun(2, PROGRAM, "auto", 2, 1, 1)).count("backend shm") == 2
