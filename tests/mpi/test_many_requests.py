"""Hundreds of requests of alternating shapes leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import check_ok, mpirun
from tiny import write_flux_pipeline

PROGRAM = Path(__file__).parent / "programs" / "many_requests.py"


@pytest.mark.parametrize(
    "layout",
    [
        "mpi ulysses",
        "shm ulysses",
        *(
            pytest.param(layout, marks=pytest.mark.slow)
            for layout in ("mpi ring", "shm ring", "shm kv_gather", "shm tp", "shm ulysses sharded")
        ),
    ],
)
def test_memory_files_and_mappings_stay_flat(tmp_path: Path, layout: str) -> None:
    model = write_flux_pipeline(tmp_path / "flux", heads=4, t5_length=5)
    printed = check_ok(mpirun(2, PROGRAM, model, 500, *layout.split(), timeout=200))
    (memory, files, mappings, _), (memory_later, files_later, mappings_later, _) = (
        list(map(int, line.split())) for line in printed.splitlines()
    )
    assert memory_later < 1.05 * memory + 4096
    assert files_later == files
    assert mappings_later == mappings
