"""MPI's own shared memory is not left behind by a launch that is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import flavour, mpirun

PROGRAM = Path(__file__).parent / "programs" / "segment_names.py"


@pytest.mark.skipif(flavour() != "mpich", reason="the names of other MPI libraries are theirs to remove")
def test_a_killed_launch_leaves_no_segment() -> None:
    result = mpirun(3, PROGRAM, timeout=60)
    assert result.returncode != 0
    lines = [line for line in result.stdout.splitlines() if line.startswith("/dev/shm/")]
    mapped = {line.removesuffix(" (deleted)") for line in lines}
    assert mapped, result.stderr
    assert not [name for name in mapped if Path(name).exists()]
