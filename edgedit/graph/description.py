"""A model's graph as numbers: what `edgedit plan` needs of it, without weights, ggml or MPI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgedit.graph.collective import Collective
from edgedit.graph.node import Node


@dataclass(frozen=True)
class GraphDescription:
    """The graph of one forward pass on one rank, in program order.

    outputs            ids of the nodes that the caller reads
    input_nbytes       graph inputs and constants of this rank
    weight_nbytes      dtype -> bytes of the parameters in memory
    supports_guidance  True where the network takes a distilled guidance scale as an input
    fusion_reasons     fused operator -> why its generic twin stands in the graph instead
    notes              what the user may not expect of the weights
    """

    name: str
    nodes: tuple[Node, ...]
    collectives: tuple[Collective, ...]
    outputs: tuple[int, ...]
    input_nbytes: int
    weight_nbytes: Mapping[str, int]
    supports_guidance: bool = False
    fusion_reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
