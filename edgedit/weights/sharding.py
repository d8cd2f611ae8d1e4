"""What one rank holds of a weight that several ranks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Part:
    """Runs [begin, end) along one axis of a tensor, one after another.

    cuts  every place at which the share of any rank begins or ends: what has to hold for all ranks alike is told
          from these
    """

    axis: int
    spans: tuple[tuple[int, int], ...]
    cuts: tuple[int, ...]

    @property
    def length(self) -> int:
        return sum(end - begin for begin, end in self.spans)

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Shape of the part of a tensor of shape `whole`."""
        return (*whole[: self.axis], self.length, *whole[self.axis + 1 :])

    def of(self, values: np.ndarray) -> Any:
        """The part of the values, of which nothing is read yet: an array, or `Beside` where runs are apart."""
        views = [values[(slice(None),) * self.axis + (slice(begin, end),)] for begin, end in self.spans]
        if len(views) == 1:
            return views[0]
        assert self.axis == 1 == values.ndim - 1, f"{len(views)} runs along axis {self.axis} of {values.shape}"
        return Beside(views)


class Beside:
    """Arrays [N, K_i] beside each other as [N, sum of K_i], joined only where rows are taken out by a slice."""

    ndim = 2

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = parts
        self.shape = (len(parts[0]), sum(part.shape[1] for part in parts))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.concatenate([part[rows] for part in self.parts], axis=1)
