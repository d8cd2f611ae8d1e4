"""Which node each rank runs on, and how much of a collective has to leave it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from edgedit.config import AXES
from edgedit.graph.collective import Collective
from edgedit.parallel.mesh import WEIGHTS, Mesh
from edgedit.tuning.cost_model import Transfer
from edgedit.tuning.machine import INTER, INTRA, Machine


@dataclass(frozen=True)
class _Spread:
    """Of the groups of one axis, as the rank with most to send out of its node sees it.

    inside   peers on its own node
    crosses  True where a rank and the next one of some group are on different nodes
    """

    inside: int
    crosses: bool


class Topology:
    """The ranks of a mesh on the nodes of a machine, in order: neighbours of the fast axes, tp and ulysses, first.

    A node takes whole groups of tp x ulysses ranks where they fit on one, so that ring or kv_gather, cfg and dp are
    what crosses nodes; unless the machine's nodes are filled already.
    """

    def __init__(self, mesh: Mesh, machine: Machine) -> None:
        self.mesh = mesh
        self.machine = machine
        together = mesh.degrees["tp"] * mesh.degrees["ulysses"]
        slots = machine.ranks_per_node
        whole = 0 if machine.is_filled else slots // together * together
        self.capacity = whole or slots  # ranks that a node gets
        self._spreads = {axis: self._spread_of(axis) for axis in (*AXES, WEIGHTS)}

    @property
    def num_nodes(self) -> int:
        """Nodes that are needed."""
        return -(-self.mesh.world_size // self.capacity)

    @property
    def fits(self) -> bool:
        """Whether the machine has as many nodes."""
        return self.machine.num_nodes is None or self.num_nodes <= self.machine.num_nodes

    def node_of(self, rank: int) -> int:
        return rank // self.capacity

    def place_of(self, axis: str) -> str:
        """INTRA where every group of the axis stays inside a node, else INTER."""
        spread = self._spreads[axis]
        return INTRA if spread.inside == self.mesh.degrees[axis] - 1 else INTER

    def transfer(self, collective: Collective) -> Transfer:
        """Raises ValueError where the machine has no such link."""
        spread, kind = self._spreads[collective.axis], collective.kind
        peers = collective.size - 1
        outside = peers - spread.inside
        if kind == "ring_shift":
            peers, outside = 1, int(spread.crosses)
        rounds = 2 if kind == "all_reduce" else 1
        share = outside / peers if peers else 0.0
        seconds, overlap = 0.0, 0.0
        for place, count, part in ((INTRA, peers - outside, 1 - share), (INTER, outside, share)):
            if not count:
                continue
            link = self.machine.link(place, kind)
            senders = min(self.capacity, self.mesh.world_size) if link.is_shared else 1
            took = rounds * count * link.latency_s + part * collective.bytes_sent * senders / link.bytes_per_s
            if took >= seconds:
                seconds, overlap = took, link.overlap
        return Transfer(seconds, overlap, INTER if outside else INTRA)

    def _spread_of(self, axis: str) -> _Spread:
        stride, extent = self._strides_of(axis)
        inside, crosses = extent // stride - 1, False
        for group in self._groups(stride, extent):
            nodes = [rank // self.capacity for rank in group]
            if nodes[0] != nodes[-1]:  # ranks ascend, and nodes with them
                inside = min(inside, min(Counter(nodes).values()) - 1)
                crosses = True
        return _Spread(inside, crosses)

    def _strides_of(self, axis: str) -> tuple[int, int]:
        """How far apart the next ranks of a group are, and how far the next groups beyond those in between."""
        degrees = self.mesh.degrees
        if axis == WEIGHTS:  # as with sharded weights: all ranks of one place on tp
            return degrees["tp"], self.mesh.world_size
        stride = prod(degrees[other] for other in AXES[: AXES.index(axis)])
        return stride, stride * degrees[axis]

    def _groups(self, stride: int, extent: int) -> Iterator[range]:
        """As `Mesh.groups`, without asking for the place of every rank."""
        for begin in range(0, self.mesh.world_size, extent):
            for first in range(begin, begin + stride):
                yield range(first, first + extent, stride)
