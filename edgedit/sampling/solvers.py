"""One step of a sampler. Flow matching: the model predicts the velocity dx/dsigma."""

from __future__ import annotations

import numpy as np


def euler_step(sample: np.ndarray, velocity: np.ndarray, sigma: float, sigma_next: float) -> np.ndarray:
    """``sample + (sigma_next - sigma) * velocity``, float32."""
    step = np.float32(sigma_next) - np.float32(sigma)
    return sample.astype(np.float32, copy=False) + step * velocity.astype(np.float32, copy=False)
