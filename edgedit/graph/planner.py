"""Nodes and collectives in, a schedule out. Pure: no ggml, no MPI, no numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgedit.graph.collective import Collective
from edgedit.graph.liveness import peak_nbytes, unread_views
from edgedit.graph.node import Node
from edgedit.graph.ordering import order_nodes
from edgedit.graph.placement import allocated_nbytes
from edgedit.graph.schedule import Flight, Schedule, Segment, Start, Wait, digest_of
from edgedit.graph.validation import check_program


def plan(
    nodes: Sequence[Node], collectives: Sequence[Collective], outputs: Sequence[int], *, degree: int = 1
) -> Schedule:
    """Order a program and cut it at its collectives.

    nodes        in program order; `nodes[i].index == i`
    collectives  `nodes[c.start].collective` is the position of c in this list
    outputs      ids of nodes whose storage must survive to the end
    degree       ranks that share this program's work

    Raises EdgeditError for a program that cannot be planned, and for degree > 1 without any collective.
    """
    check_program(nodes, collectives, outputs, degree)
    unread = unread_views(nodes, outputs)
    order = [index for index in order_nodes(nodes, collectives) if index not in unread]
    steps = tuple(_cut(nodes, order))
    starts = [step.collective for step in steps if isinstance(step, Start)]
    signature = tuple(collectives[c].signature for c in starts)
    return Schedule(
        order=tuple(order),
        steps=steps,
        collectives=tuple(collectives),
        retained=_retained(steps, collectives),
        overlapped=_overlapped(nodes, order, steps, len(collectives)),
        signature=signature,
        digest=digest_of(signature),
        peak_nbytes=peak_nbytes(nodes, order, outputs),
        buffer_nbytes=allocated_nbytes(nodes, order, outputs),
    )


def _cut(nodes: Sequence[Node], order: Sequence[int]) -> Iterator[Segment | Start | Wait]:
    """Segments end before a collective node and begin after it: none ever crosses one."""
    segment_of: dict[int, int] = {}
    received = _received(nodes)
    num_segments = begin = 0

    def segment(end: int) -> Segment:
        here = num_segments
        inside = order[begin:end]
        segment_of.update((index, here) for index in inside)
        sources = {source for index in inside for source in nodes[index].inputs}
        return Segment(
            index=here,
            begin=begin,
            end=end,
            flops=sum(nodes[index].flops for index in inside),
            nbytes=sum(nodes[index].nbytes for index in inside),
            reads=tuple(sorted(source for source in sources if segment_of.get(source, here) < here)),
            receives=tuple(sorted({received[source] for source in sources if source in received})),
        )

    for position, index in enumerate(order):
        node = nodes[index]
        if node.collective is None:
            continue
        if position > begin:
            yield segment(position)
            num_segments += 1
        begin = position + 1
        yield (Start if node.op == "start" else Wait)(node.collective, position)
    if len(order) > begin:
        yield segment(len(order))


def _received(nodes: Sequence[Node]) -> dict[int, int]:
    """Wait nodes and views of them -> position of the collective whose data they show."""
    received: dict[int, int] = {}
    for node in nodes:
        if node.op == "wait":
            assert node.collective is not None, f"wait node {node.index} {node.name!r} has no collective"
            received[node.index] = node.collective
        elif node.base is not None:
            received.update((node.index, received[source]) for source in node.inputs if source in received)
    return received


def _retained(
    steps: Sequence[Segment | Start | Wait], collectives: Sequence[Collective]
) -> dict[int, tuple[int, int]]:
    retained: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Segment):
            continue
        send = collectives[step.collective].send
        first, _ = retained.get(send, (number, number))
        retained[send] = (first, number)
    return retained


def _overlapped(
    nodes: Sequence[Node], order: Sequence[int], steps: Sequence[Segment | Start | Wait], num_collectives: int
) -> tuple[Flight, ...]:
    flying: dict[int, list[Segment]] = {}
    flights = [Flight()] * num_collectives
    for step in steps:
        if isinstance(step, Start):
            flying[step.collective] = []
        elif isinstance(step, Segment):
            for inside in flying.values():
                inside.append(step)
        else:
            inside = flying.pop(step.collective)
            flights[step.collective] = Flight(
                segments=tuple(segment.index for segment in inside),
                nodes=tuple(index for segment in inside for index in order[segment.begin : segment.end]),
                flops=sum(segment.flops for segment in inside),
            )
    return tuple(flights)
