"""Where each rank stands on each axis, and which ranks make up each group.

rank = tp + T*(u + U*(r + R*(c + C*d))): tp fastest, then ulysses, ring or kv_gather, cfg, dp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edgedit.config import AXES

WORLD = "world"
WEIGHTS = "weights"  # ranks that keep shares of the same weights: those with the same place on tp


class Mesh:
    """The rank table of one layout: made from a `ParallelConfig`, or from a mapping of axis to degree."""

    def __init__(self, degrees: Any) -> None:
        given: Mapping[str, int] = degrees if isinstance(degrees, Mapping) else degrees.axes
        unknown = sorted(set(given) - set(AXES))
        if unknown:
            raise ValueError(f"unknown axes {unknown}; legal: {', '.join(AXES)}")
        self.degrees = {axis: given.get(axis, 1) for axis in AXES}
        for axis, degree in self.degrees.items():
            if degree < 1:
                raise ValueError(f"{axis} degree is {degree}; legal: at least 1")
        if self.degrees["ring"] > 1 and self.degrees["kv_gather"] > 1:
            raise ValueError(
                f"ring {self.degrees['ring']} and kv_gather {self.degrees['kv_gather']} are alternatives for one slot"
            )
        self.world_size = math.prod(self.degrees.values())
        # ranks of each: the first ones of the world are a group, each of the others is alone
        self.overlays: dict[str, int] = {} if isinstance(degrees, Mapping) else degrees.overlays
        self.shards_weights = not isinstance(degrees, Mapping) and degrees.weight_degree > 1

    def coords(self, rank: int) -> dict[str, int]:
        """The place of `rank` on every axis. Raises `ValueError` for a rank outside the world."""
        if not 0 <= rank < self.world_size:
            raise ValueError(f"rank {rank} is outside the world of {self.world_size}")
        place = {}
        for axis, degree in self.degrees.items():
            rank, place[axis] = divmod(rank, degree)
        return place

    def rank_at(self, coords: Mapping[str, int]) -> int:
        """The rank at a place; axes that are left out count as 0."""
        rank = 0
        for axis in reversed(AXES):
            rank = rank * self.degrees[axis] + coords.get(axis, 0)
        return rank

    def group_of(self, axis: str, rank: int) -> list[int]:
        """The ranks that differ from `rank` on `axis` only, in the order of that axis; `world` is all of them.

        For an overlay, the first ranks of the world, or `rank` alone; for `weights`, those that keep shares of the
        weights that `rank` uses, or `rank` alone.
        """
        if axis == WORLD:
            return list(range(self.world_size))
        if axis in self.overlays:
            return list(range(self.overlays[axis])) if rank < self.overlays[axis] else [rank]
        if axis == WEIGHTS:
            return self._sharing_weights(rank)
        place = self.coords(rank)
        return [self.rank_at({**place, axis: position}) for position in range(self._degree(axis))]

    def _sharing_weights(self, rank: int) -> list[int]:
        if not self.shards_weights:
            return [rank]
        return list(range(rank % self.degrees["tp"], self.world_size, self.degrees["tp"]))

    def groups(self, axis: str) -> list[list[int]]:
        """All groups of `axis`, each in the order of the axis, by their first rank."""
        if axis == WORLD:
            return [self.group_of(WORLD, 0)]
        self._degree(axis)
        return [self.group_of(axis, rank) for rank in range(self.world_size) if self.coords(rank)[axis] == 0]

    def table(self) -> str:
        """One line per rank with its place on every axis in use, for printing."""
        used = [axis for axis in AXES if self.degrees[axis] > 1]
        rows = [["rank", *used]]
        rows += [
            [str(rank), *(str(self.coords(rank)[axis]) for axis in used)] for rank in range(self.world_size)
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        )

    def _degree(self, axis: str) -> int:
        if axis not in self.degrees:
            raise ValueError(f"unknown axis {axis!r}; legal: {', '.join(AXES)}, {WORLD}")
        return self.degrees[axis]
