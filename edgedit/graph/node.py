"""What the planner knows of one operation of a graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a program. Its id is `index`, its position in program order.

    `op` is ggml's name of the operation, the operator's for nodes of our own (graph/registry.py), and "start" and
    "wait" for the two nodes of a collective.

    Inputs are ids of earlier nodes; weights, constants and graph inputs are leaves, not nodes, and never
    appear. A node depends on what it reads and on nothing else. Nodes that write into the storage of their
    base form a chain, each reading the result of the one before; only the last may have other readers.

    inputs      ids of the nodes it reads
    shape       numpy order
    nbytes      storage it owns; 0 for a view
    flops       floating-point operations on this rank
    base        for a view, the id of the node whose storage it shows (which may be a view itself)
    collective  for the nodes "start" and "wait", the position of their collective in the program's list
    """

    index: int
    name: str
    op: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    flops: int = 0
    base: int | None = None
    collective: int | None = None
