"""Latents as images [B, C, h, w] and as the token sequences [B, S, 4*C] that FLUX transformers read."""

from __future__ import annotations

import numpy as np


def patchify(latents: np.ndarray) -> np.ndarray:
    """[B, C, h, w] -> [B, (h/2)*(w/2), 4*C]: each token is a 2x2 patch, channel-major (C, 2, 2)."""
    batch, channels, height, width = latents.shape
    patches = latents.reshape(batch, channels, height // 2, 2, width // 2, 2)
    tokens = patches.transpose(0, 2, 4, 1, 3, 5)  # [B, h/2, w/2, C, 2, 2]
    return tokens.reshape(batch, (height // 2) * (width // 2), channels * 4)


def unpatchify(tokens: np.ndarray, height: int, width: int) -> np.ndarray:
    """[B, (h/2)*(w/2), 4*C] -> [B, C, h, w] with latent ``height`` h and ``width`` w."""
    batch, _, features = tokens.shape
    patches = tokens.reshape(batch, height // 2, width // 2, features // 4, 2, 2)
    return patches.transpose(0, 3, 1, 4, 2, 5).reshape(batch, features // 4, height, width)


def image_ids(height: int, width: int) -> np.ndarray:
    """Positions (0, row, column) of the tokens of a latent h x w: float32 [(h/2)*(w/2), 3]."""
    ids = np.zeros((height // 2, width // 2, 3), np.float32)
    ids[..., 1] = np.arange(height // 2)[:, None]
    ids[..., 2] = np.arange(width // 2)[None, :]
    return ids.reshape(-1, 3)
