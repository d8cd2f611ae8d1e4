"""The order in which a program's nodes run: sends early, waits late, independent compute inside the flights.

Collectives start in program order on every rank; that alone makes a schedule free of deadlock. For the next
one to start, in turn:

1. Everything it needs that is not behind a wait runs, in program order. Much of this is compute inside the
   flights of earlier collectives.
2. If it needs collectives that are still in flight, compute for later collectives that depends on nothing in
   flight goes before the first of these waits. Only what the nearest later collective needs is considered, so
   that nothing is dragged across the whole program. Together with the compute that these flights already
   hold, they get the share of it that their bytes have among all flights until that collective starts; the
   rest is left for the others.
3. The waits it needs follow, each freeing more of what step 1 runs.

Nodes that no collective needs run after the last start, before any wait that they do not depend on. A
collective whose result nobody reads is completed at the end. Nodes that only own memory move to their first
reader, so that it is not taken before it is needed.

Every decision rests on program order, on the kind of each operation and on counts over all ranks, never on
what one rank holds, so that ranks with uneven shards choose the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgedit.graph.collective import Collective
from edgedit.graph.node import Node

# FLOPs differ between ranks with uneven shards, so work is weighed by the kind of operation.
_HEAVY_OPS = frozenset(
    {
        "linear",
        "attention",
        "attention_partial",
        "conv2d",
        "mul_mat",
        "mul_mat_id",
        "out_prod",
        "flash_attn_ext",
        "im2col",
        "conv_2d",
        "conv_2d_dw",
        "conv_3d",
        "conv_transpose_2d",
    }
)
# The builder's uninitialised memory is a custom node without sources.
_MEMORY_OPS = frozenset({"custom"})
_HEAVY_WORK, _LIGHT_WORK, _VIEW_WORK = 16, 1, 0


def order_nodes(nodes: Sequence[Node], collectives: Sequence[Collective]) -> list[int]:
    """Ids of all nodes in the order in which they run. The program must be valid."""
    return _with_memory_late(nodes, _Ordering(nodes, collectives).run())


class _Ordering:
    """State of one pass. A collective is known by its turn: its position among the program's starts."""

    def __init__(self, nodes: Sequence[Node], collectives: Sequence[Collective]) -> None:
        self.nodes = nodes
        self.turns = sorted(collectives, key=lambda collective: collective.start)
        self.flight_nbytes = _flight_nbytes(self.turns)
        self.gates = _gates(nodes, self.turns)
        self.todo = _group_by_need(nodes, self.turns)  # turn -> nodes that it needs first, in program order
        self.order: list[int] = []
        self.arrived = 0  # bit set of the turns whose wait stands in the order
        self.departure: list[int] = []  # turn -> position in the order at which its flight begins

    def run(self) -> list[int]:
        for turn, collective in enumerate(self.turns):
            self._run_ready(turn)
            needed = self.gates[collective.start] & ~self.arrived
            if needed:
                self._fill_flights(turn, needed)
                self._wait_for(needed, turn)
            self.departure.append(len(self.order))
        last = len(self.turns)
        self._run_ready(last)
        self._wait_for(((1 << last) - 1) & ~self.arrived, last)
        assert len(self.order) == len(self.nodes), (
            f"{len(self.order)} of {len(self.nodes)} nodes were ordered"
        )
        return self.order

    def _run_ready(self, turn: int) -> None:
        """Run what `turn` needs and no wait holds back, up to and including its start."""
        held: list[int] = []
        for index in self.todo[turn]:
            (held if self.gates[index] & ~self.arrived else self.order).append(index)
        self.todo[turn] = held

    def _wait_for(self, needed: int, turn: int) -> None:
        for earlier in _bits(needed):
            self.order.append(self.turns[earlier].wait)
            self.arrived |= 1 << earlier
            self._run_ready(turn)

    def _fill_flights(self, turn: int, needed: int) -> None:
        """Place compute of a later turn before the waits in `needed`, which `turn` is about to ask for."""
        for later in range(turn + 1, len(self.todo)):
            # A start keeps its turn, even where a rank has nothing to compute for it.
            ready = [
                index
                for index in self.todo[later]
                if self.nodes[index].op != "start" and not self.gates[index] & ~self.arrived
            ]
            if ready:
                break
        else:
            return
        ending = sum(self.flight_nbytes[flight] for flight in _bits(needed))
        remaining = sum(self.flight_nbytes[turn:later])
        share = ending / (ending + remaining) if ending else 0.0
        inside = self.order[max(self.departure[flight] for flight in _bits(needed)) :]
        held = sum(map(self._work, inside))
        quota = share * (held + sum(map(self._work, ready))) - held
        taken: list[int] = []
        done = 0
        for index in ready:
            work = self._work(index)
            if done + work / 2 > quota:  # a node goes where more than half of it fits
                break
            done += work
            taken.append(index)
        self.order += taken
        left = set(self.todo[later]).difference(taken)
        self.todo[later] = [index for index in self.todo[later] if index in left]

    def _work(self, index: int) -> int:
        node = self.nodes[index]
        if node.base is not None or node.op in _MEMORY_OPS:
            return _VIEW_WORK
        return _HEAVY_WORK if node.op in _HEAVY_OPS else _LIGHT_WORK


def _with_memory_late(nodes: Sequence[Node], order: Sequence[int]) -> list[int]:
    """The order with each node that computes nothing, but owns memory for others to write, at its first user."""
    pending = {node.index for node in nodes if node.op in _MEMORY_OPS and not node.inputs}
    late: list[int] = []
    for index in order:
        if index not in pending:
            for source in nodes[index].inputs:
                if source in pending:
                    pending.remove(source)
                    late.append(source)
            late.append(index)
    return late + sorted(pending)


def _flight_nbytes(turns: Sequence[Collective]) -> list[float]:
    """Bytes per flight, equal on all ranks.

    All flights count the same if one cannot know its bytes, or if they are on several axes: then ranks that share one
    group see unlike bytes in their other groups.
    """
    nbytes = [collective.mean_nbytes_sent for collective in turns]
    known = [value for value in nbytes if value is not None]
    is_known = len(known) == len(nbytes) and len({collective.axis for collective in turns}) <= 1
    return known if is_known else [1.0] * len(nbytes)


def _gates(nodes: Sequence[Node], turns: Sequence[Collective]) -> list[int]:
    """Per node, the bit set of the turns that must have arrived before it can run."""
    own = {collective.wait: 1 << turn for turn, collective in enumerate(turns)}
    gates: list[int] = []
    for node in nodes:
        gate = own.get(node.index, 0)
        for source in node.inputs:
            gate |= gates[source]
        gates.append(gate)
    return gates


def _group_by_need(nodes: Sequence[Node], turns: Sequence[Collective]) -> list[list[int]]:
    """Per turn, the nodes that it is the first to need, directly or not; last, those that no turn needs."""
    first_need = [len(turns)] * len(nodes)
    for turn, collective in enumerate(turns):
        first_need[collective.start] = turn
    for node in reversed(nodes):
        for source in node.inputs:
            first_need[source] = min(first_need[source], first_need[node.index])
    waits = {collective.wait for collective in turns}
    groups: list[list[int]] = [[] for _ in range(len(turns) + 1)]
    for node in nodes:
        if node.index not in waits:
            groups[first_need[node.index]].append(node.index)
    return groups


def _bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, ascending."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
