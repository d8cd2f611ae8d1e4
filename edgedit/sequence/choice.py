"""Which strategy a parallel configuration asks for."""

from __future__ import annotations

from edgedit.config import ParallelConfig
from edgedit.parallel.mesh import Mesh
from edgedit.sequence.local import Local
from edgedit.sequence.strategy import AttentionStrategy
from edgedit.sequence.ulysses import Ulysses


def strategy_for(config: ParallelConfig, compute_dtype: str = "f32") -> AttentionStrategy:
    """Local on one sequence rank, else Ulysses. The wire carries f32 unless the configuration says otherwise."""
    if config.ulysses_degree == 1:
        return Local()
    rank = Mesh(config).coords(config.rank)["ulysses"]
    wire_dtype = "f32" if config.wire_dtype == "auto" else config.wire_dtype
    return Ulysses(config.ulysses_degree, rank, wire_dtype)
