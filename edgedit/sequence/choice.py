"""Which strategy a parallel configuration asks for."""

from __future__ import annotations

from edgedit.config import ParallelConfig
from edgedit.parallel.mesh import Mesh
from edgedit.sequence.kv_gather import KVGather
from edgedit.sequence.local import Local
from edgedit.sequence.strategy import AttentionStrategy
from edgedit.sequence.ulysses import Ulysses


def strategy_for(config: ParallelConfig, compute_dtype: str, mode: str = "uneven") -> AttentionStrategy:
    """Local on one sequence rank, else what shares tokens over the axes in use, see SPSequenceSplit for `mode`."""
    place, wire = Mesh(config).coords(config.rank), config.wire_dtype_for(compute_dtype)
    if config.kv_gather_degree > 1:
        return KVGather(config.kv_gather_degree, place["kv_gather"], wire, mode)
    if config.ulysses_degree > 1:
        return Ulysses(config.ulysses_degree, place["ulysses"], wire, mode)
    return Local()
