"""A picture cut into overlapping tiles that are computed one by one and blended into each other.

Norms over a picture need all of it, so a tile takes their statistics from outside: a norm is measured on every tile
before the tiles go on to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.sequence.rows import WholePicture, by_channel, group_squares, group_sums, scaled


@dataclass(frozen=True)
class Cut:
    """Equal runs of at most `tile` positions that cover `length` of them, as evenly as whole positions allow.

    margin  positions at a cut whose values the cut has changed: they count nothing
    blend   positions over which one run passes into the next

    Raises ValueError for runs too short to overlap by two margins and a blend.
    """

    length: int
    tile: int
    margin: int

    def __post_init__(self) -> None:
        if self.tile < smallest_tile(self.margin):
            raise ValueError(
                f"tiles of {self.tile} positions are too small; at least {smallest_tile(self.margin)}"
            )

    @property
    def blend(self) -> int:
        return max(1, self.tile // 16)

    @cached_property
    def runs(self) -> int:
        rest = max(0, self.length - self.tile)
        return 1 - -rest // (self.tile - self._overlap)

    @cached_property
    def extent(self) -> int:
        """Positions of each run: no more than so many runs need."""
        return -(-(self.length + (self.runs - 1) * self._overlap) // self.runs)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        rest, last = self.length - self.extent, max(1, self.runs - 1)
        return tuple(round(run * rest / last) for run in range(self.runs))

    @property
    def _overlap(self) -> int:
        return 2 * self.margin + self.blend

    def weights(self, run: int, factor: int) -> np.ndarray:
        """How much each value of a run counts, f32 [factor * extent]; `factor` values stand for each position."""
        begin, count = self.starts[run], factor * self.extent
        places = np.arange(count, dtype=np.float32) + np.float32(0.5)
        weights = np.ones(count, np.float32)
        if begin > 0:
            weights = np.minimum(weights, (places - factor * self.margin) / (factor * self.blend))
        if begin + self.extent < self.length:
            weights = np.minimum(weights, (count - places - factor * self.margin) / (factor * self.blend))
        return np.maximum(weights, 0, dtype=np.float32)

    def owned(self, run: int, factor: int) -> np.ndarray:
        """1 for the values of a run that belong to it, 0 for its neighbours': f32 [factor * extent]."""
        begin, end = self.starts[run], self.starts[run] + self.extent
        first = (self.starts[run - 1] + self.extent + begin) // 2 if run else 0
        last = (end + self.starts[run + 1]) // 2 if run + 1 < len(self.starts) else self.length
        owned = np.zeros(factor * self.extent, np.float32)
        owned[factor * (first - begin) : factor * (last - begin)] = 1
        return owned


def smallest_tile(margin: int) -> int:
    """Positions that a run needs at least."""
    return max(4, 4 * margin)


@dataclass(frozen=True)
class Statistics:
    """Mean and variance of each group of channels over a whole picture, f32 [B, groups, 1]."""

    mean: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[tuple[float, np.ndarray, np.ndarray]]) -> Statistics:
        """From the weight, mean and variance of every part, in order."""
        weights, means, variances = (np.array(values, np.float64) for values in zip(*parts, strict=True))
        shares = (weights / weights.sum())[:, None, None, None]
        mean = (shares * means).sum(axis=0)
        variance = (shares * (variances + (means - mean) ** 2)).sum(axis=0)
        return cls(mean.astype(np.float32), variance.astype(np.float32))


class NormReached(Exception):
    """The norm that is to be measured has been reached: the layers after it have no use yet."""


class Tile(WholePicture):
    """One tile, on its way through a network as far as norms are known.

    The first `known` norms use statistics that are inputs of the graph, see `inputs_of`. The next one is measured over
    the values that belong to the tile, as outputs "mean" and "variance" [B, groups, 1], and raises NormReached.
    """

    def __init__(self, known: int) -> None:
        self.known = known
        self._norms = 0

    @staticmethod
    def inputs_of(statistics: Sequence[Statistics]) -> dict[str, np.ndarray]:
        return {
            f"{name} {index}": getattr(known, name)
            for index, known in enumerate(statistics)
            for name in ("mean", "variance")
        }

    def group_norm(
        self, b: GraphBuilder, x: Tensor, groups: int, eps: float, weight: Tensor, bias: Tensor
    ) -> Tensor:
        index, self._norms = self._norms, self._norms + 1
        if index == self.known:
            self._measure(b, x, groups)
            raise NormReached
        batch, channels, _, _ = x.shape
        mean, variance = (b.input(f"{name} {index}", (batch, groups, 1)) for name in ("mean", "variance"))
        centred = b.sub(x, by_channel(b, mean, channels // groups))
        return scaled(b, centred, variance, eps, weight, bias)

    def _measure(self, b: GraphBuilder, x: Tensor, groups: int) -> None:
        _, channels, height, width = x.shape
        owned = b.input("owned", (1, 1, height, width))
        share = b.scale(b.input("share", (1, 1, 1)), groups / channels)  # of a value among those of its group
        mean = b.mul(group_sums(b, b.mul(x, owned), groups), share)
        centred = b.mul(b.sub(x, by_channel(b, mean, channels // groups)), owned)
        b.output("mean", mean)
        b.output("variance", b.mul(group_squares(b, centred, groups), share))
