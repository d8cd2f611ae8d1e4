"""What the FLUX transformer computes of its arguments before the graph: token positions and their periods."""

from __future__ import annotations

import numpy as np

ROPE_THETA = 10000


def positions(ids: np.ndarray, axes: int, tokens: int, name: str) -> np.ndarray:
    """Token ids [S, axes] as ggml wants them: i32 [axes, S]. Raises ValueError where they are no integers."""
    ids = np.asarray(ids)
    if ids.shape != (tokens, axes):
        raise ValueError(f"{name} must be [tokens, axes] = {[tokens, axes]}, got {list(ids.shape)}")
    whole = ids.astype(np.int32)
    if not np.array_equal(whole, ids):
        raise ValueError(f"{name} must be whole numbers; ggml rotates by integer positions only")
    return whole.T


def rope_periods(dim: int) -> np.ndarray:
    """Periods [dim / 2] of one axis, theta^(2i / dim) [Su et al. 2021]."""
    return (float(ROPE_THETA) ** (np.arange(0, dim, 2, dtype=np.float64) / dim)).astype(np.float32)
