"""Checks of token ids: ggml ends the process on one that its table lacks."""

from __future__ import annotations

import numpy as np


def checked_ids(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """`ids` as i32 [B, S]. Raises ValueError unless they are whole numbers of the vocabulary, at least one of them."""
    ids = np.asarray(ids)
    if ids.ndim != 2 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"input_ids must be integers [B, S], got {ids.dtype} {list(ids.shape)}")
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(
            f"input_ids reach from {ids.min()} to {ids.max()}; the vocabulary has {vocab_size} tokens"
        )
    return ids.astype(np.int32)
