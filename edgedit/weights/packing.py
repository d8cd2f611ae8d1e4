"""Weights into the panels of a kernel family, while they are read: only the packed form is ever held whole."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor

import numpy as np

from edgedit import _native
from edgedit.graph import _ggml
from edgedit.weights import convert
from edgedit.weights.forms import Form


def pack(
    values: np.ndarray,
    stored: str,
    scale: np.ndarray | None,
    form: Form,
    name: str,
    address: int,
    workers: Executor,
    num_workers: int,
) -> None:
    """Fill the packed form of a weight.

    Args:
        values, stored, scale: a weight [N, K] as a `TensorSource` gives it; may be a mapped file.
        form: of the packed weight.
        name: for messages.
        address: of its memory, aligned to 64 bytes.
        workers, num_workers: threads that convert and pack whole panels of rows each.

    Raises:
        CheckpointError: if a value is beyond the range of f16.
    """
    assert form.packed is not None, f"{name} has no packed form"
    family, type_id = form.packed, _ggml.TYPE_IDS[form.dtype]
    columns, inner = form.shape
    panel = _native.kernels.panel(family)
    step = convert.PIECE_ELEMENTS // (num_workers * max(1, inner)) // panel * panel or panel

    def pack_from(first: int) -> None:
        taken = slice(first, first + step)
        rows = convert.converted(values[taken], stored, form.dtype, name, convert.part_of(scale, taken))
        _native.kernels.pack(family, type_id, columns, inner, first, len(rows), rows.ctypes.data, address)

    deque(workers.map(pack_from, range(0, columns, step)), maxlen=0)
