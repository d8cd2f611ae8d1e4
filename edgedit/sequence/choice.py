"""Which strategy a parallel configuration asks for."""

from __future__ import annotations

from edgedit.config import ParallelConfig
from edgedit.parallel.mesh import Mesh
from edgedit.sequence.local import Local
from edgedit.sequence.strategy import AttentionStrategy
from edgedit.sequence.ulysses import Ulysses


def strategy_for(config: ParallelConfig, compute_dtype: str) -> AttentionStrategy:
    """Local on one sequence rank, else Ulysses."""
    if config.ulysses_degree == 1:
        return Local()
    rank = Mesh(config).coords(config.rank)["ulysses"]
    return Ulysses(config.ulysses_degree, rank, config.wire_dtype_for(compute_dtype))
