"""Collectives as exchanges of blocks, and which shared receive slot each exchange uses. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgedit.dtypes import itemsize
from edgedit.graph.collective import Collective
from edgedit.graph.node import Node
from edgedit.graph.schedule import Schedule, Segment, Start

MIN_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Block:
    """What goes to one rank of the group and comes from it: bytes, and where they begin in the two tensors."""

    send_offset: int = 0
    send_nbytes: int = 0
    recv_offset: int = 0
    recv_nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """One round of blocks between all ranks of a group, its own rank included.

    An all_reduce is two: raw chunks go to the ranks that sum them (`is_parts`), then the sums go to everybody.

    collective   its position in the schedule's list
    opens        position of the order from which on the peers' memory may be written
    closes       position of the last node that reads what was received; the length of the order for an output
    """

    collective: int
    is_parts: bool
    blocks: tuple[Block, ...]
    opens: int
    closes: int

    @property
    def recv_nbytes(self) -> int:
        return sum(block.recv_nbytes for block in self.blocks)


def exchanges_of(
    schedule: Schedule, nodes: Sequence[Node], outputs: Sequence[int], opens: Mapping[int, int] | None = None
) -> list[Exchange]:
    """All exchanges of a schedule, in the order in which they open.

    `opens` gives, for collectives whose send tensor is written straight into the peers' memory, the position of the
    first node that does so; others open with their start.
    """
    opens = opens or {}
    last_reader = _last_readers(schedule, nodes, outputs)
    waits = {
        step.collective: step.position for step in schedule.steps if not isinstance(step, Segment | Start)
    }
    exchanges = []
    for step in schedule.steps:
        if not isinstance(step, Start):
            continue
        index, collective = step.collective, schedule.collectives[step.collective]
        begin, wait, end = opens.get(index, step.position), waits[index], last_reader[index]
        if collective.kind == "all_reduce":
            exchanges.append(Exchange(index, True, _chunks(collective), begin, wait))
            exchanges.append(Exchange(index, False, _sums(collective), wait, end))
        else:
            exchanges.append(Exchange(index, False, _blocks(collective), begin, end))
    return sorted(exchanges, key=lambda exchange: exchange.opens)


def slot_count(exchanges: Sequence[Exchange]) -> int:
    """The smallest number of slots, at least two, that exchanges can use in turn.

    An exchange must find its slot read to the end: the last reader of the one that used it before stands earlier.
    """
    for slots in range(MIN_SLOTS, len(exchanges) + 1):
        pairs = zip(exchanges, exchanges[slots:], strict=False)
        if all(earlier.closes < later.opens for earlier, later in pairs):
            return slots
    return max(MIN_SLOTS, len(exchanges))


def releases(schedule: Schedule, exchanges: Sequence[Exchange]) -> Iterator[tuple[int, bool, int]]:
    """(collective, at its wait, exchange): where to say that an exchange has been read.

    That is the first collective node behind the last reader. An exchange that no such node follows is released when
    the run is over, and the chunks of an all_reduce as soon as they are summed.
    """
    opens = {exchange.collective: exchange.opens for exchange in reversed(exchanges)}
    calls = sorted(
        (
            opens[step.collective] if isinstance(step, Start) else step.position,
            not isinstance(step, Start),
            step.collective,
        )
        for step in schedule.steps
        if not isinstance(step, Segment)
    )
    for index, exchange in enumerate(exchanges):
        if exchange.is_parts:
            continue
        for position, at_wait, collective in calls:
            if position > exchange.closes:
                yield collective, at_wait, index
                break


def _blocks(collective: Collective) -> tuple[Block, ...]:
    width = itemsize(collective.dtype)
    sent, received = collective.send_counts, collective.recv_counts
    if collective.kind == "broadcast":
        nbytes = received[0] * width
        is_root = collective.rank == 0
        return tuple(
            Block(0, nbytes if is_root else 0, 0, nbytes if peer == 0 else 0)
            for peer in range(collective.size)
        )
    gathers = collective.kind == "all_gather"
    blocks = []
    send_offset = recv_offset = 0
    for to_peer, from_peer in zip(sent, received, strict=True):
        blocks.append(Block(0 if gathers else send_offset, to_peer * width, recv_offset, from_peer * width))
        send_offset += to_peer * width
        recv_offset += from_peer * width
    return tuple(blocks)


def _chunks(collective: Collective) -> tuple[Block, ...]:
    width, own = itemsize(collective.dtype), collective.send_counts[collective.rank]
    return tuple(
        Block(sum(collective.send_counts[:peer]) * width, count * width, peer * own * width, own * width)
        for peer, count in enumerate(collective.send_counts)
    )


def _sums(collective: Collective) -> tuple[Block, ...]:
    """The own chunk goes to everybody from where it belongs in the result."""
    width, shares, rank = itemsize(collective.dtype), collective.send_counts, collective.rank
    own = sum(shares[:rank]) * width
    return tuple(
        Block(own, shares[rank] * width, sum(shares[:peer]) * width, count * width)
        for peer, count in enumerate(shares)
    )


def _last_readers(schedule: Schedule, nodes: Sequence[Node], outputs: Sequence[int]) -> dict[int, int]:
    """Per collective, the position of the last node that reads its receive tensor, directly or through a view."""
    shown: dict[int, int] = {collective.start: i for i, collective in enumerate(schedule.collectives)}
    for node in nodes:
        if node.base in shown:
            shown[node.index] = shown[node.base]
    last: dict[int, int] = {}
    for position, index in enumerate(schedule.order):
        for source in (index, *nodes[index].inputs):
            if source in shown:
                last[shown[source]] = position
    last.update((shown[index], len(schedule.order)) for index in outputs if index in shown)
    return last
