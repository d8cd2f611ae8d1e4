"""Which rank computes which guidance branch, and the exchange of the predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from edgedit.parallel.arrays import gathered
from edgedit.parallel.split import branches_of

if TYPE_CHECKING:
    from edgedit.config import ParallelConfig
    from edgedit.parallel.context import ParallelContext
    from edgedit.parallel.mesh import Mesh
    from edgedit.pipelines.request import Request


class Branches:
    """``count`` guidance branches (0 unconditional, 1 conditional, 2 without some layers) over the cfg axis.

    Branch i runs on cfg rank i mod the axis' length, those of one rank in turn and never batched; ranks beyond the
    branches repeat what another already does.
    """

    def __init__(self, context: ParallelContext, count: int) -> None:
        self.context = context
        self.group = context.group("cfg")
        self.count = count
        self.own = self.of_rank(self.group.rank)

    def of_rank(self, rank: int) -> list[int]:
        """The branches of a cfg rank."""
        return branches_of(rank, self.count, self.group.size)

    def predict(
        self,
        run: Callable[[int], np.ndarray],
        label: str = "prediction",
        active: int | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> list[np.ndarray]:
        """``run(branch)`` of every branch, in branch order, equal on all ranks of the cfg axis.

        Of the branches only the first ``active`` run, all of them by default; ``shape`` is that of a prediction, for
        ranks that have none of these.
        """
        active = self.count if active is None else active
        own = [run(branch) for branch in self.own if branch < active]
        if self.group.size == 1 or self.count == 1:
            return own
        assert own or shape is not None, "a rank without an active branch needs the shape"
        shape = own[0].shape if own else shape
        assert shape is not None
        holders = [[b for b in self.of_rank(rank) if b < active] for rank in range(self.group.size)]
        order = [branch for held in holders for branch in held]
        stacked = np.stack(own) if own else np.empty((0, *shape), np.float32)
        with self.context.exchanging(self.group, "all_gather", label, "f32"):
            every = gathered(self.group, stacked, [len(held) for held in holders], label)
        return [every[order.index(branch)] for branch in range(active)]


def check_lockstep(config: ParallelConfig, request: Request) -> None:
    """Refuse requests for which ranks would not all run the same blocks as often, where they keep each other's weights.

    Raises ValueError.
    """
    if config.weight_degree == 1:
        return
    if request.batch % config.dp_degree:
        give = "one picture gives" if request.batch == 1 else f"{request.batch} pictures give"
        raise ValueError(
            f"sharded weights over dp {config.dp_degree}: {give} some ranks more than others; "
            f"use a number of pictures that {config.dp_degree} divides, or whole weights"
        )
    degree, count = config.cfg_degree, len(request.branches)
    if degree == 1:
        return
    if request.skip_layer_guidance is not None:
        raise ValueError(
            f"sharded weights over cfg {degree}: a branch leaves layers out, whose weights other ranks would wait for; "
            "use cfg 1, or whole weights"
        )
    if count > degree and count % degree:
        raise ValueError(
            f"sharded weights over cfg {degree}: {count} guidance branches give some ranks more passes than others; "
            f"use a cfg that divides {count}, or whole weights"
        )


def idle_notes(mesh: Mesh, count: int, needs: str) -> list[str]:
    """Which world ranks only repeat another one's work with ``count`` branches; ``needs`` what a second one takes."""
    idle = [rank for rank in range(mesh.world_size) if mesh.coords(rank)["cfg"] >= count]
    if not idle:
        return []
    have = "one guidance branch" if count == 1 else f"{count} guidance branches"
    hint = f"; a second one needs {needs} above 1" if count == 1 else ""
    ranks = ", ".join(map(str, idle))
    return [f"cfg {mesh.degrees['cfg']}: the request has {have}, ranks {ranks} repeat others{hint}"]
