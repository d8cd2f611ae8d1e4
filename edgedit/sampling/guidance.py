"""Classifier-free guidance, and guidance away from a model that lacks some layers."""

from __future__ import annotations

import numpy as np


def combine(uncond: np.ndarray, cond: np.ndarray, scale: float) -> np.ndarray:
    """``uncond + scale * (cond - uncond)``, in exactly that order: ``s*c + (1-s)*u`` rounds differently."""
    return uncond + np.float32(scale) * (cond - uncond)


def away_from_skipped(guided: np.ndarray, cond: np.ndarray, skipped: np.ndarray, scale: float) -> np.ndarray:
    """``guided + scale * (cond - skipped)``, where ``skipped`` is the prediction without some layers."""
    return guided + (cond - skipped) * np.float32(scale)
