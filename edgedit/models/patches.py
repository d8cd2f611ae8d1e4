"""Latents as images [B, C, h, w] and as the token sequences [B, S, 4*C] that transformers read: 2x2 patches."""

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


def unpatchify_channels_last(tokens: np.ndarray, height: int, width: int) -> np.ndarray:
    """The same for tokens that hold their patch as (2, 2, C)."""
    batch, _, features = tokens.shape
    patches = tokens.reshape(batch, height // 2, width // 2, 2, 2, features // 4)
    return patches.transpose(0, 5, 1, 3, 2, 4).reshape(batch, features // 4, height, width)
