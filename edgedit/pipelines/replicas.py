"""Which replica of the model draws which pictures of a batch, and how what they draw comes together again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edgedit import dtypes
from edgedit.parallel.arrays import gathered
from edgedit.parallel.split import array_split

if TYPE_CHECKING:
    from edgedit.parallel.context import ParallelContext
    from edgedit.parallel.mesh import Mesh


class Replicas:
    """`count` pictures over the dp axis, in order: the first replicas have one more where shares are uneven.

    The ranks of a replica share its pictures' work along the other axes. A replica may have no picture.
    """

    def __init__(self, context: ParallelContext, count: int) -> None:
        self.context = context
        self.group = context.group("dp")
        self.shares = array_split(count, self.group.size)
        self.begin = sum(self.shares[: self.group.rank])

    def rounds(self, most: int | None = None) -> list[range]:
        """This replica's pictures in runs of at most `most`, all at once by default."""
        end = self.begin + self.shares[self.group.rank]
        size = most or max(1, end - self.begin)
        return [range(begin, min(begin + size, end)) for begin in range(self.begin, end, size)]

    def gather(self, own: np.ndarray, label: str) -> np.ndarray:
        """Arrays [share, ...] of all replicas as one [count, ...], on every rank."""
        if self.group.size == 1:
            return own
        with self.context.exchanging(self.group, "all_gather", label, dtypes.from_numpy(own.dtype)):
            return gathered(self.group, own, self.shares, label)

    def gather_lines(self, own: Sequence[str], label: str) -> list[str]:
        """The lines of all replicas, in order, on every rank; of several, a line says which it is of."""
        if self.group.size == 1:
            return list(own)
        texts = [text.decode() for text in self.group.exchange("\n".join(own).encode(), label=label)]
        return [
            f"replica {replica}, {line}" for replica, text in enumerate(texts) for line in text.split("\n")
        ]

    def notes(self) -> list[str]:
        """What the caller should know: ranks that have nothing to draw."""
        return replica_notes(self.context.mesh, self.shares)


def replica_notes(mesh: Mesh, shares: Sequence[int]) -> list[str]:
    """Ranks that have nothing to draw, where replicas have so many pictures each."""
    idle = [rank for rank in range(mesh.world_size) if not shares[mesh.coords(rank)["dp"]]]
    if not idle:
        return []
    pictures = "one picture" if sum(shares) == 1 else f"{sum(shares)} pictures"
    return [f"dp {len(shares)}: the request is of {pictures}, ranks {', '.join(map(str, idle))} have none"]
