"""Which rank computes which guidance branch, and the exchange of the predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from edgedit.parallel.buffer import Buffer

if TYPE_CHECKING:
    from edgedit.parallel.context import ParallelContext


class Branches:
    """``count`` guidance branches (0 unconditional, 1 conditional) over the cfg axis of a context.

    A cfg axis of one rank runs the branches in turn, never batched. On a longer one cfg rank i runs branch
    i mod ``count``; ranks beyond the branches repeat what another already does.
    """

    def __init__(self, context: ParallelContext, count: int) -> None:
        self.context = context
        self.group = context.group("cfg")
        self.count = count
        self.own = list(range(count)) if self.group.size == 1 else [self.group.rank % count]

    def predict(self, run: Callable[[int], np.ndarray], label: str = "prediction") -> list[np.ndarray]:
        """``run(branch)`` of every branch, in branch order, equal on all ranks of the cfg axis."""
        own = [run(branch) for branch in self.own]
        if len(own) == self.count:
            return own
        prediction = np.ascontiguousarray(own[0])
        gathered = np.empty((self.group.size, *prediction.shape), prediction.dtype)
        send = Buffer.of(prediction)
        with self.context.exchanging(self.group, "all_gather", label, send.dtype):
            self.group.all_gather(send, Buffer.of(gathered), label=label)
        return list(gathered[: self.count])


def idle_cfg_ranks(context: ParallelContext, count: int) -> list[int]:
    """World ranks that only repeat another rank's work with ``count`` branches."""
    mesh = context.mesh
    return [rank for rank in range(mesh.world_size) if mesh.coords(rank)["cfg"] >= count]
