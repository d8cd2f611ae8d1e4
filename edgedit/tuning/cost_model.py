"""How long a step of a layout takes and what memory it needs, told from schedules and a machine. Pure.

    step     = passes x (pass + overhead of a pass) + exchange of the predictions
    passes   = ceil(guidance branches / cfg ranks)
    pass     = the schedule's steps in their order, on the rank with the largest share (rank 0):
      segment  the clock advances by the sum of its nodes
      node     overhead of a node + FLOPs / rate (products, attention) or bytes read and written / rate (the rest)
      start    the clock advances by (1 - overlap) x transfer; the data arrives overlap x transfer after that, and
               after what was sent over the same kind of link before
      wait     the clock advances to the arrival
    transfer = latency x peers + bytes sent / rate of the link;
               over a link between nodes the rate is the node's, divided by the ranks that send at once

Ranks with smaller shares wait for rank 0, so its time is that of all. What a transfer takes of the clock, and what is
waited for, is the exposed part of communication: the rest is hidden behind compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from edgedit.dtypes import itemsize
from edgedit.graph.collective import Collective
from edgedit.graph.forecast import RankForecast
from edgedit.graph.node import Node
from edgedit.graph.schedule import Segment, Start
from edgedit.tuning.machine import Rates

_PRODUCTS = frozenset({"linear", "mul_mat", "mul_mat_id", "conv2d", "conv_2d", "im2col", "out_prod"})
_ATTENTIONS = frozenset({"attention", "attention_partial", "flash_attn_ext"})
# Nodes that only say how memory is read; collectives are counted as transfers.
_FREE = frozenset({"none", "view", "reshape", "permute", "transpose", "custom", "start", "wait"})
_BYTES_IN_BLOCKS = {"q8_0": 34 / 32}  # of a value, in types of which activations may be on the wire


@dataclass(frozen=True)
class Transfer:
    """A collective on the wire: seconds, the share of them in which the rank can compute, and the kind of link."""

    seconds: float
    overlap: float
    link: str


@dataclass(frozen=True)
class Seconds:
    """Of a pass or a step: computing, and communication that compute does not hide."""

    compute: float
    exposed: float

    @property
    def total(self) -> float:
        return self.compute + self.exposed

    def times(self, factor: float) -> Seconds:
        return Seconds(factor * self.compute, factor * self.exposed)

    def plus(self, other: Seconds) -> Seconds:
        return Seconds(self.compute + other.compute, self.exposed + other.exposed)


def is_free(op: str) -> bool:
    return op in _FREE


def is_product(op: str) -> bool:
    return op in _PRODUCTS


def is_attention(op: str) -> bool:
    return op in _ATTENTIONS


def node_seconds(node: Node, nodes: Sequence[Node], rates: Rates) -> float:
    """Time of one node; `nodes` are those of its graph."""
    if is_free(node.op):
        return 0.0
    elements = max(1, prod(node.shape))
    if is_product(node.op):
        work = node.flops / rates.product.at(max(1, prod(node.shape[:-1])))
    elif is_attention(node.op):
        work = node.flops / rates.attention.at(max(1.0, node.flops / (4 * elements)))
    else:
        work = (_nbytes(node) + sum(_nbytes(nodes[source]) for source in node.inputs)) / rates.other
    return rates.node_s + work


def _nbytes(node: Node) -> float:
    return prod(node.shape) * (_BYTES_IN_BLOCKS.get(node.dtype) or itemsize(node.dtype))


def pass_seconds(
    rank: RankForecast, rates: Rates, transfer_of: Callable[[Collective], Transfer], *, cut: bool = False
) -> Seconds:
    """One run of a rank's schedule. `cut` tells whether segments are run one by one (comm graph-cut)."""
    nodes, schedule = rank.graph.nodes, rank.schedule
    seconds = {index: node_seconds(nodes[index], nodes, rates) for index in schedule.order}
    clock = compute = 0.0
    arrivals: dict[int, float] = {}
    busy: dict[str, float] = {}  # kind of link -> when it is free again
    for step in schedule.steps:
        if isinstance(step, Segment):
            took = sum(seconds[index] for index in schedule.order[step.begin : step.end])
            took += rates.segment_s if cut else 0.0
            clock += took
            compute += took
        elif isinstance(step, Start):
            transfer = transfer_of(schedule.collectives[step.collective])
            clock += (1 - transfer.overlap) * transfer.seconds
            begins = max(clock, busy.get(transfer.link, 0.0))
            arrivals[step.collective] = busy[transfer.link] = begins + transfer.overlap * transfer.seconds
        else:
            clock = max(clock, arrivals.pop(step.collective))
    return Seconds(compute, clock - compute)


def passes_per_step(branches: int, cfg_degree: int) -> int:
    """Forward passes of the busiest rank."""
    return math.ceil(branches / cfg_degree)
