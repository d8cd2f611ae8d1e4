"""Checks of a program before it is planned. Every message names the node or collective at fault."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from edgedit.errors import EdgeditError
from edgedit.graph.collective import KINDS, Collective
from edgedit.graph.node import Node


def check_program(
    nodes: Sequence[Node], collectives: Sequence[Collective], outputs: Sequence[int], degree: int
) -> None:
    """Raise EdgeditError where the program cannot be planned."""
    if degree > 1 and not collectives:
        raise EdgeditError(
            f"a program for {degree} ranks holds no collective: every rank would compute alone; "
            f"the model was built for one rank, or it does not support these degrees"
        )
    _check_nodes(nodes, len(collectives))
    for output in outputs:
        if not 0 <= output < len(nodes):
            raise EdgeditError(f"output {output} is no node of the program; it has {len(nodes)}")
    names: set[str] = set()
    axis_of_first: dict[str, Collective] = {}
    for position, collective in enumerate(collectives):
        if collective.name in names:
            raise EdgeditError(f"two collectives are called {collective.name!r}; names must be unique")
        names.add(collective.name)
        _check_ranks(collective, axis_of_first.setdefault(collective.axis, collective), degree)
        _check_ends(nodes, position, collective)
        _check_counts(nodes, collective)


def _check_nodes(nodes: Sequence[Node], num_collectives: int) -> None:
    for position, node in enumerate(nodes):
        problem = _problem_of(nodes, position, node, num_collectives)
        if problem:
            raise EdgeditError(f"node {position} {node.name!r} ({node.op}) {problem}")


def _problem_of(nodes: Sequence[Node], position: int, node: Node, num_collectives: int) -> str | None:
    if node.index != position:
        return f"has id {node.index}; ids are positions in program order"
    for source in node.inputs if node.base is None else (*node.inputs, node.base):
        if not 0 <= source < len(nodes):
            return f"reads node {source}; there are only {len(nodes)} nodes"
        if source >= position:
            return (
                f"reads node {source} {nodes[source].name!r}, which does not come before it: "
                f"the program has a cycle or is out of order"
            )
    if (node.op in ("start", "wait")) != (node.collective is not None):
        return f"has collective {node.collective}; start and wait nodes have one, others have none"
    if node.collective is not None and not 0 <= node.collective < num_collectives:
        return f"belongs to collective {node.collective}; there are {num_collectives}"
    return None


def _check_ranks(collective: Collective, first: Collective, degree: int) -> None:
    where = f"{collective.kind} {collective.name!r}"
    if collective.kind not in KINDS:
        raise EdgeditError(f"{where}: unknown kind; known are {', '.join(KINDS)}")
    size = collective.size
    if size == 0 or len(collective.recv_counts) != size:
        raise EdgeditError(
            f"{where} has {size} send counts and {len(collective.recv_counts)} receive counts; "
            f"both need one per rank of its group"
        )
    if not 0 <= collective.rank < size:
        raise EdgeditError(f"{where} is seen by rank {collective.rank} of a group of {size}")
    if (size, collective.rank) != (first.size, first.rank):
        raise EdgeditError(
            f"{where} has rank {collective.rank} of {size} on axis {collective.axis!r}, "
            f"but {first.name!r} has rank {first.rank} of {first.size}"
        )
    if degree > 1 and degree % size:
        raise EdgeditError(
            f"{where} has a group of {size} ranks, which does not divide the {degree} ranks of the program"
        )


def _check_ends(nodes: Sequence[Node], position: int, collective: Collective) -> None:
    where = f"{collective.kind} {collective.name!r}"
    send, start, wait = collective.send, collective.start, collective.wait
    for role, index in (("send", send), ("start", start), ("wait", wait)):
        if not 0 <= index < len(nodes):
            raise EdgeditError(
                f"{where}: its {role} node {index} does not exist; there are {len(nodes)} nodes"
            )
    if wait <= start:
        raise EdgeditError(f"{where} waits at node {wait}, before it starts at node {start}")
    for op, index, inputs in (("start", start, (send,)), ("wait", wait, (start, send))):
        node = nodes[index]
        if node.op != op or node.collective != position or not set(inputs) <= set(node.inputs):
            raise EdgeditError(
                f"{where} needs node {index} to be its {op} and to read nodes {inputs}; "
                f"it is {node.op!r} of collective {node.collective} with inputs {node.inputs}"
            )
    if nodes[wait].base != start:
        raise EdgeditError(
            f"{where}: its wait node must be a view of its start node {start}, not of {nodes[wait].base}"
        )


def _check_counts(nodes: Sequence[Node], collective: Collective) -> None:
    where = f"{collective.kind} {collective.name!r}"
    if min(*collective.send_counts, *collective.recv_counts) < 0:
        raise EdgeditError(f"{where} has negative counts: {collective.send_counts}, {collective.recv_counts}")
    own = collective.send_counts[collective.rank]
    repeated = collective.kind in ("all_gather", "broadcast")
    sent = own if repeated else sum(collective.send_counts)
    received = own if collective.kind == "broadcast" else sum(collective.recv_counts)
    for role, index, count in (("send", collective.send, sent), ("receive", collective.start, received)):
        elements = prod(nodes[index].shape)
        # A rank that owns no token still has a tensor of one element: it may be larger than its counts.
        if count > elements:
            raise EdgeditError(
                f"{where} {role}s {count} elements, but its {role} tensor {nodes[index].name!r} "
                f"of shape {nodes[index].shape} has {elements}"
            )
