"""Starting noise that equals PyTorch's for a seed.

The stream is that of ``torch.Generator("cpu").manual_seed(seed)`` followed by calls of ``torch.randn(shape)`` in
float32: an MT19937 generator and Box-Muller. It depends on the seed and the shapes only, so every rank draws
the same noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_BLOCK = 16  # torch transforms blocks of 16: eight radii, eight angles


class NoiseStream:
    """Draws that follow each other from one seed, as from one torch generator.

    The seed may be anything torch takes, -2**63 .. 2**64 - 1; as in torch only its low 32 bits count.
    Raises ValueError for a seed outside that range.
    """

    def __init__(self, seed: int) -> None:
        if not -(2**63) <= seed < 2**64:
            raise ValueError(f"seed {seed} is outside -2**63 .. 2**64 - 1")
        self._generator = np.random.RandomState(seed % 2**32)
        self._spare = np.empty(0, np.float32)  # the half of a pair that a draw of fewer than 16 left over

    def randn(self, shape: Sequence[int]) -> np.ndarray:
        """Standard normal noise of ``shape`` (numpy order), float32."""
        count = math.prod(shape)
        if count >= _BLOCK:
            return _block_normals(self._generator, count).reshape(shape)
        drawn = _scalar_normals(self._generator, max(0, count - len(self._spare)))
        normals = np.concatenate([self._spare, drawn])
        self._spare = normals[count:]
        return normals[:count].reshape(shape)


def randn(shape: Sequence[int], seed: int) -> np.ndarray:
    """The first draw of a seed: standard normal noise of ``shape`` (numpy order), float32."""
    return NoiseStream(seed).randn(shape)


def _raw32(generator: np.random.RandomState, count: int) -> np.ndarray:
    # over the full range numpy hands out the generator's own words
    return generator.randint(0, 2**32, size=count, dtype=np.uint32)


def _block_normals(generator: np.random.RandomState, count: int) -> np.ndarray:
    """Float32 path for count >= 16: Box-Muller on blocks of 16 uniforms; a ragged end redraws the last 16."""
    uniforms = _uniforms(generator, count)
    whole = count - count % _BLOCK
    normals = np.empty(count, np.float32)
    normals[:whole] = _box_muller(uniforms[:whole])
    if whole != count:
        normals[-_BLOCK:] = _box_muller(_uniforms(generator, _BLOCK))
    return normals


def _uniforms(generator: np.random.RandomState, count: int) -> np.ndarray:
    low24 = _raw32(generator, count) & np.uint32(0xFFFFFF)
    return low24.astype(np.float32) * np.float32(2.0**-24)


def _box_muller(uniforms: np.ndarray) -> np.ndarray:
    blocks = uniforms.reshape(-1, 2, _BLOCK // 2)
    radius = np.sqrt(np.float32(-2.0) * np.log(np.float32(1.0) - blocks[:, 0]))
    angle = np.float32(2.0 * math.pi) * blocks[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)


def _scalar_normals(generator: np.random.RandomState, count: int) -> np.ndarray:
    """Float64 path for count < 16: 53-bit uniforms, the sine half of each pair is the next sample. Whole pairs."""
    pairs = (count + 1) // 2
    words = _raw32(generator, 4 * pairs).astype(np.uint64).reshape(pairs, 2, 2)
    bits = ((words[..., 0] << np.uint64(32)) | words[..., 1]) & np.uint64(2**53 - 1)
    uniforms = bits.astype(np.float64) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log1p(-uniforms[:, 1]))
    angle = 2.0 * math.pi * uniforms[:, 0]
    normals = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)
    return normals.astype(np.float32)


def noised(sample: np.ndarray, noise: np.ndarray, sigma: float) -> np.ndarray:
    """``sigma * noise + (1 - sigma) * sample``, float32: where flow matching is at noise level ``sigma``."""
    level = np.float32(sigma)
    return level * noise + (np.float32(1) - level) * sample
