"""How much memory ggml's graph allocator takes for nodes in a given order, told without ggml.

It serves requests one after another, each from the smallest hole that is large enough or else from the end, and
computes some operations in the storage of what they read. So it needs more than lives at once where holes are left,
and less where it works in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgedit.graph.liveness import owners
from edgedit.graph.node import Node

_ALIGNMENT = 32  # of ggml's CPU buffers
# ggml's operations that may write over an operand of their own shape and type.
_IN_PLACE = frozenset(
    {
        "fill",
        "scale",
        "add",
        "add_id",
        "add1",
        "sub",
        "mul",
        "div",
        "sqr",
        "sqrt",
        "log",
        "unary",
        "rope",
        "rms_norm",
        "soft_max",
    }
)


class _Heap:
    """Free ranges [begin, end) by address, the last of which has no end."""

    def __init__(self) -> None:
        self.size = 0
        self._holes: list[tuple[int, int]] = []
        self._end = 0

    def take(self, nbytes: int) -> int:
        """Address of a new block."""
        fitting = [hole for hole in self._holes if hole[1] - hole[0] >= nbytes]
        if not fitting:
            begin, self._end = self._end, self._end + nbytes
            self.size = max(self.size, self._end)
            return begin
        # of holes of one size ggml takes the last
        begin, end = min(reversed(fitting), key=lambda hole: hole[1] - hole[0])
        self._holes.remove((begin, end))
        if begin + nbytes < end:
            self._insert(begin + nbytes, end)
        return begin

    def give(self, begin: int, nbytes: int) -> None:
        """Free a block, or the end of one."""
        end = begin + nbytes
        for hole in self._holes:
            if hole[1] == begin or hole[0] == end:
                begin, end = min(begin, hole[0]), max(end, hole[1])
        self._holes = [hole for hole in self._holes if hole[1] <= begin or hole[0] >= end]
        if end == self._end:
            self._end = begin
        elif begin < end:
            self._insert(begin, end)

    def _insert(self, begin: int, end: int) -> None:
        self._holes.append((begin, end))
        self._holes.sort()


def allocated_nbytes(nodes: Sequence[Node], order: Sequence[int], outputs: Iterable[int] = ()) -> int:
    """Bytes of the buffer that holds all results of nodes; `outputs` live to the end."""
    owner = owners(nodes)
    readers = [0] * len(nodes)  # of a node's storage, itself or views of it, still to come
    for index in order:
        for storage in {owner[source] for source in nodes[index].inputs}:
            readers[storage] += 1
    kept = {owner[index] for index in outputs}
    heap = _Heap()
    places: dict[int, tuple[int, int]] = {}  # storage -> address, bytes
    for index in order:
        node = nodes[index]
        sources = list(dict.fromkeys(owner[source] for source in node.inputs))
        if node.base is None:
            size = _aligned(node.nbytes)
            ending = {source for source in sources if readers[source] == 1 and source not in kept}
            spent = _overwritten(nodes, node, owner, ending)
            if spent is None:
                places[index] = (heap.take(size), size)
            else:
                begin, whole = places.pop(spent)
                places[index] = (begin, size)
                if whole > size:
                    heap.give(begin + size, whole - size)
        for source in sources:
            readers[source] -= 1
            if not readers[source] and source not in kept and source in places:
                heap.give(*places.pop(source))
    return heap.size


def _overwritten(nodes: Sequence[Node], node: Node, owner: Sequence[int], ending: set[int]) -> int | None:
    """The storage that the node is computed in, of those that nobody reads after it; None for a new one."""
    if node.op in _IN_PLACE:
        for source in node.inputs:
            operand = nodes[source]
            if owner[source] in ending and (operand.shape, operand.dtype) == (node.shape, node.dtype):
                return owner[source]
    return None


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
