"""Positions of the image tokens that FLUX transformers read."""

from __future__ import annotations

import numpy as np


def image_ids(height: int, width: int) -> np.ndarray:
    """Positions (0, row, column) of the tokens of a latent h x w: float32 [(h/2)*(w/2), 3]."""
    ids = np.zeros((height // 2, width // 2, 3), np.float32)
    ids[..., 1] = np.arange(height // 2)[:, None]
    ids[..., 2] = np.arange(width // 2)[None, :]
    return ids.reshape(-1, 3)
