"""Tensor parallelism [Shoeybi et al. 2019, Megatron-LM]: each rank of a group holds a share of the large weights.

A layer says which way its weight may be shared (`split`, models/layers.py); this file gives every layer of a network
its share. A product of columns needs no exchange, and one of rows behind it sums what the ranks have, so that attention
and MLP exchange once each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from edgedit.config import ParallelConfig
from edgedit.graph import _ggml
from edgedit.graph.ops.collectives import Group
from edgedit.models.layers import Embedding, Linear, Run, Sharing
from edgedit.models.module import Module, Parameter
from edgedit.parallel.mesh import Mesh
from edgedit.parallel.split import array_split
from edgedit.weights.checkpoint import listing
from edgedit.weights.convert import fitting_type
from edgedit.weights.sharding import Part

_GRAIN = 32  # channels that stay together where any would do, but for types of longer blocks


@dataclass(frozen=True)
class TensorGroup:
    """The ranks that share weights: a mesh axis or an overlay, this rank's place on it, and their number."""

    name: str
    rank: int
    size: int

    @classmethod
    def of(cls, parallel: ParallelConfig, axis: str) -> TensorGroup:
        """This rank's group on the axis."""
        ranks = Mesh(parallel).group_of(axis, parallel.rank)
        return cls(axis, ranks.index(parallel.rank), len(ranks))


def share(network: Module, group: Group, compute_dtype: str) -> None:
    """Give each layer that can be shared the part of rank `group.rank`; nothing for a group of one.

    Shares are those of `array_split`, counted in units: attention heads, or blocks of the weights' type, so that
    quantised values are those that one rank would have.
    """
    if group.size == 1:
        return
    for module in network.modules():
        if not isinstance(module, Linear | Embedding) or module.split is None:
            continue
        shares = _shares(module.runs, group.size, _ggml.block_size(compute_dtype))
        channels = tuple(sum(end - begin for begin, end in spans) for spans in shares)
        module.sharing = Sharing(group, channels)
        cuts = tuple(sorted({edge for spans in shares for span in spans for edge in span}))
        axis = 1 if module.split == "rows" or isinstance(module, Embedding) else 0
        module.weight.part = Part(axis, shares[group.rank], cuts)
        if isinstance(module, Linear) and module.bias and axis == 0:
            module.bias.part = module.weight.part


def sharing_notes(network: Module, compute_dtype: str) -> tuple[str, ...]:
    """What the user may not expect: weights that are f16 because a share ends inside a block of the quantised type."""
    unaligned = [name for name, parameter in network.named_parameters() if _is_unaligned(parameter, compute_dtype)]
    if not unaligned:
        return ()
    block = _ggml.block_size(compute_dtype)
    return (
        f"{len(unaligned)} weights are f16 instead of {compute_dtype}, whose blocks of {block} the shares of the ranks "
        f"would cut: {listing(unaligned, 3)}",
    )


def _is_unaligned(parameter: Parameter, compute_dtype: str) -> bool:
    part = parameter.part
    if parameter.role != "linear" or part is None or part.axis != 1:
        return False
    whole, shared = (fitting_type(parameter.shape, compute_dtype, cuts) for cuts in ((), part.cuts))
    return whole != shared


def _shares(runs: Sequence[Run], ranks: int, block: int) -> list[tuple[tuple[int, int], ...]]:
    """Per rank, the channels [begin, end) that it has of each run; runs lie side by side."""
    edges = [list(_edges(run, ranks, block)) for run in runs]
    begins = accumulate((run.channels for run in runs), initial=0)
    placed = [[begin + edge for edge in of_run] for begin, of_run in zip(begins, edges, strict=False)]
    return [tuple((of_run[rank], of_run[rank + 1]) for of_run in placed) for rank in range(ranks)]


def _edges(run: Run, ranks: int, block: int) -> Iterator[int]:
    """Where the shares of one run begin, and its end."""
    unit = run.unit or _unit(run.channels, ranks, block)
    assert run.channels % unit == 0, f"{run.channels} channels are not whole units of {unit}"
    return accumulate((unit * count for count in array_split(run.channels // unit, ranks)), initial=0)


def _unit(channels: int, ranks: int, block: int) -> int:
    """The largest of grain, block and single channels that divides the channels and leaves every rank some."""
    for unit in (math.lcm(_GRAIN, block), block):
        if channels % unit == 0 and channels // unit >= ranks:
            return unit
    return 1
