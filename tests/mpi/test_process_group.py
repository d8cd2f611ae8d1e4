"""Collectives between processes: any world size, any layout, the same checks as between threads."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import check_ok, mpirun

PROGRAM = Path(__file__).parent / "programs" / "collectives.py"


@pytest.mark.parametrize(
    ("ulysses", "cfg", "dp"), [(1, 1, 1), (2, 1, 1), (3, 1, 1), (2, 2, 1), (1, 2, 2), (5, 1, 1), (3, 2, 1)]
)
def test_every_collective_moves_every_block_to_its_place(ulysses: int, cfg: int, dp: int) -> None:
    num_ranks = ulysses * cfg * dp
    printed = check_ok(mpirun(num_ranks, PROGRAM, ulysses, cfg, dp))
    num_groups = (num_ranks > 1) + (ulysses > 1) + (cfg > 1) + (dp > 1)
    backend = "mpi" if num_ranks > 1 else "none"
    for rank in range(num_ranks):
        assert f"rank {rank} of {num_ranks}: {num_groups} groups, backend {backend}" in printed


@pytest.mark.parametrize("piece", [1, 5])
def test_messages_longer_than_mpi_can_count_arrive_in_pieces(piece: int) -> None:
    check_ok(mpirun(3, PROGRAM, 3, 1, 1, piece))
