"""Which strategy a parallel configuration asks for."""

from __future__ import annotations

from edgedit.config import ParallelConfig
from edgedit.parallel.mesh import Mesh
from edgedit.sequence.keys_and_values import KeysAndValues
from edgedit.sequence.kv_gather import KVGather
from edgedit.sequence.local import Local
from edgedit.sequence.ring import Ring
from edgedit.sequence.strategy import AttentionStrategy
from edgedit.sequence.ulysses import Ulysses
from edgedit.sequence.usp import USP


def strategy_for(config: ParallelConfig, compute_dtype: str, mode: str = "uneven") -> AttentionStrategy:
    """Local on one sequence rank, else what shares tokens over the axes in use, see SPSequenceSplit for `mode`."""
    place, wire = Mesh(config).coords(config.rank), config.wire_dtype_for(compute_dtype)
    ulysses = config.ulysses_degree
    mode_between = mode if ulysses == 1 else "uneven"  # of groups: within them padding is dropped anyway
    outer: KeysAndValues | None = None
    if config.ring_degree > 1:
        outer = Ring(config.ring_degree, place["ring"], wire, mode_between)
    elif config.kv_gather_degree > 1:
        outer = KVGather(config.kv_gather_degree, place["kv_gather"], wire, mode_between)
    if ulysses == 1:
        return outer or Local()
    if outer is None:
        return Ulysses(ulysses, place["ulysses"], wire, mode)
    return USP(ulysses, place["ulysses"], outer, wire, mode)
