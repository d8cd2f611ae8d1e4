"""Which strategy a parallel configuration asks for."""

from __future__ import annotations

from edgedit.config import ParallelConfig
from edgedit.parallel.mesh import Mesh
from edgedit.sequence.local import Local
from edgedit.sequence.strategy import AttentionStrategy
from edgedit.sequence.ulysses import Ulysses


def strategy_for(config: ParallelConfig, activations: str) -> AttentionStrategy:
    """Local on one sequence rank, else Ulysses. `activations` is the type of tensors that only feed products."""
    if config.ulysses_degree == 1:
        return Local()
    rank = Mesh(config).coords(config.rank)["ulysses"]
    return Ulysses(config.ulysses_degree, rank, wire_dtype(config, activations))


def wire_dtype(config: ParallelConfig, activations: str) -> str:
    """The type on the wire; "auto" is what one rank alone rounds q, k, v and the output of attention to.

    That is f32, which rounds nothing, unless products take bf16: then one rank has all four in bf16 as well.
    """
    return activations if config.wire_dtype == "auto" else config.wire_dtype
