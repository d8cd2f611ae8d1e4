"""Classifier-free guidance, and guidance away from a model that lacks some layers."""

from __future__ import annotations

import numpy as np


def combine(uncond: np.ndarray, cond: np.ndarray, scale: float) -> np.ndarray:
    """``uncond + scale * (cond - uncond)``, in exactly that order: ``s*c + (1-s)*u`` rounds differently."""
    return uncond + np.float32(scale) * (cond - uncond)


def rescaled(guided: np.ndarray, cond: np.ndarray, factor: float) -> np.ndarray:
    """Guided predictions [B, ...], each brought to the standard deviation of its conditional one [Lin et al. 2023].

    `factor` 0 leaves them as they are, 1 gives them that deviation. Large scales of guidance raise the contrast; this
    takes it back.
    """
    deviations = [x.reshape(len(x), -1).std(axis=1, dtype=np.float64) for x in (cond, guided)]
    ratio = 1 + factor * (deviations[0] / deviations[1] - 1)
    return guided * ratio.astype(np.float32).reshape(-1, *(1,) * (guided.ndim - 1))


def away_from_skipped(guided: np.ndarray, cond: np.ndarray, skipped: np.ndarray, scale: float) -> np.ndarray:
    """``guided + scale * (cond - skipped)``, where ``skipped`` is the prediction without some layers."""
    return guided + (cond - skipped) * np.float32(scale)
