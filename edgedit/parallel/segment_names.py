"""MPICH keeps its shared memory under names in /dev/shm and removes them when it is finalized. A killed launch never
gets there, so the names go as soon as every rank has the memory mapped: the mappings live on without them."""

from __future__ import annotations

import contextlib
from pathlib import Path

_PREFIX = "/dev/shm/mpich_shm_"
_MAPS = Path("/proc/self/maps")


def forget_segment_names() -> None:
    """Remove the names of MPICH's segments that this process maps. Only once all ranks have started MPI."""
    for name in mapped_segments():
        with contextlib.suppress(OSError):  # another rank was faster, or the system does not allow it
            Path(name).unlink()


def mapped_segments() -> set[str]:
    """Paths of MPICH's segments among the mappings of this process; none under other MPI libraries."""
    with contextlib.suppress(OSError):
        fields = (line.split(maxsplit=5) for line in _MAPS.read_text().splitlines())
        return {entry[5] for entry in fields if len(entry) == 6 and entry[5].startswith(_PREFIX)}
    return set()
