"""What the FLUX transformer computes of its arguments before the graph: timestep channels and token positions."""

from __future__ import annotations

import math

import numpy as np

TIMESTEP_CHANNELS = 256
ROPE_THETA = 10000


def timestep_channels(timestep: np.ndarray, batch: int) -> np.ndarray:
    """Sinusoidal channels [B, 256] of timesteps [B] in [0, 1], scaled by 1000: cosines first, then sines.

    The embedding of DDPM [Ho et al. 2020] as diffusers' Timesteps(256, flip_sin_to_cos=True) computes it.
    """
    timestep = np.asarray(timestep, np.float32).reshape(-1)
    if timestep.shape != (batch,):
        raise ValueError(
            f"timestep and guidance need one value per batch item ({batch}), got {timestep.size}"
        )
    half = TIMESTEP_CHANNELS // 2
    frequencies = np.exp(np.arange(half, dtype=np.float32) * np.float32(-math.log(10000) / half))
    angles = (timestep * np.float32(1000))[:, None] * frequencies[None]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


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
