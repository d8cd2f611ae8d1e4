"""Classifier-free guidance."""

from __future__ import annotations

import numpy as np


def combine(uncond: np.ndarray, cond: np.ndarray, scale: float) -> np.ndarray:
    """``uncond + scale * (cond - uncond)``, in exactly that order: ``s*c + (1-s)*u`` rounds differently."""
    return uncond + np.float32(scale) * (cond - uncond)
