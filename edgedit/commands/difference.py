"""How far apart arrays and pictures are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Difference:
    """Of an array from its reference.

    relative  norm of the difference over the norm of the reference; not a number where either array is not finite
    largest   largest absolute difference of an element
    """

    relative: float
    largest: float

    @classmethod
    def of(cls, values: np.ndarray, reference: np.ndarray) -> Difference:
        """Raises AssertionError for arrays of different shapes."""
        assert values.shape == reference.shape, f"{values.shape} against {reference.shape}"
        difference = (values - reference).ravel()
        norm, whole = (
            math.sqrt(float(np.square(x, dtype=np.float64).sum())) for x in (difference, reference)
        )
        relative = norm / whole if whole else (0.0 if not norm else math.inf)
        return cls(relative, float(np.abs(difference).max(initial=0.0)))

    def is_within(self, tolerance: float) -> bool:
        return self.relative <= tolerance

    def worse_of(self, other: Difference) -> Difference:
        """The largest of both measures."""
        return Difference(max(self.relative, other.relative), max(self.largest, other.largest))


def psnr_db(pictures: Sequence[Any], references: Sequence[Any]) -> float:
    """Peak signal-to-noise ratio of 8-bit pictures, all together; infinite where they are equal."""
    values, reference = (
        np.stack([np.asarray(p, np.float64) for p in group]) for group in (pictures, references)
    )
    assert values.shape == reference.shape, f"{values.shape} against {reference.shape}"
    error = float(np.square(values - reference).mean())
    return 10 * math.log10(255**2 / error) if error else math.inf
