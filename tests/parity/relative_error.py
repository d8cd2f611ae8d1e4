"""How far a result is from PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np


def relative_error(actual: np.ndarray, expected: Any) -> float:
    """Largest difference over the largest expected magnitude."""
    expected = expected.numpy()
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    return float(np.abs(actual - expected).max() / np.abs(expected).max())
