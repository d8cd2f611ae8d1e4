"""Numpy arrays over a process group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgedit.parallel.buffer import Buffer

if TYPE_CHECKING:
    from edgedit.parallel.process_group import ProcessGroup


def gathered(group: ProcessGroup, own: np.ndarray, lengths: Sequence[int], label: str) -> np.ndarray:
    """Every rank's array [lengths[rank], ...], one after another along the first axis, on every rank."""
    if group.size == 1:
        return own
    whole = np.empty((sum(lengths), *own.shape[1:]), own.dtype)
    row = int(np.prod(own.shape[1:]))
    counts = [length * row for length in lengths]
    group.all_gather(Buffer.of(np.ascontiguousarray(own)), Buffer.of(whole), counts, label=label)
    return whole
