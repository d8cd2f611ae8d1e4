"""How much storage is live at once while nodes run in a given order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgedit.graph.node import Node

_VIEW_OPS = frozenset({"view", "reshape", "permute", "transpose"})


def peak_nbytes(nodes: Sequence[Node], order: Sequence[int], outputs: Iterable[int] = ()) -> int:
    """Most bytes live at once.

    Storage lives from the node that owns it to the last reader of it or of a view of it; inputs and result of
    a node are live together; outputs live to the end. A send tensor lives until its wait, which reads it; a
    receive buffer belongs to its start node, of which the wait is a view.
    """
    owner = owners(nodes)
    end = len(order)
    last_use = [0] * len(nodes)
    for position, index in enumerate(order):
        last_use[owner[index]] = position
        for source in nodes[index].inputs:
            last_use[owner[source]] = position
    for index in outputs:
        last_use[owner[index]] = end
    freed_after = [0] * (end + 1)
    for node in nodes:
        freed_after[last_use[node.index]] += node.nbytes
    live = peak = 0
    for position, index in enumerate(order):
        live += nodes[index].nbytes
        peak = max(peak, live)
        live -= freed_after[position]
    return peak


def owners(nodes: Sequence[Node]) -> list[int]:
    """Per node, the node whose storage it shows."""
    owner: list[int] = []
    for node in nodes:
        owner.append(node.index if node.base is None else owner[node.base])
    return owner


def unread_views(nodes: Sequence[Node], outputs: Iterable[int]) -> set[int]:
    """Views that neither a node nor the caller reads. ggml's allocator would keep their storage to the end."""
    read = set(outputs)
    unread = set()
    for node in reversed(nodes):
        if node.op in _VIEW_OPS and node.base is not None and node.index not in read:
            unread.add(node.index)
        else:
            read.update(node.inputs)
    return unread
