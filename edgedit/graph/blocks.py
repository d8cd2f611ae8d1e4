"""A schedule in a form that fits on a page: repeated blocks of steps told once."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from edgedit.graph.node import Node
from edgedit.graph.schedule import Schedule, Segment, Start, Wait

MAX_PERIOD = 32
_NUMBER = re.compile(r"\d+")
_BLOCK = re.compile(r"^\D*\d+\.")
# Nodes with less than this share of a segment's FLOPs are not named.
_NAMED_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Block:
    """`count` runs of the same `period` steps, from step `begin`."""

    begin: int
    period: int
    count: int


def blocks_of(schedule: Schedule) -> list[Block]:
    """Cut the steps into blocks: each place takes the repetition that covers most steps, the shortest of equals."""
    shapes = [_shape(schedule, step) for step in schedule.steps]
    blocks: list[Block] = []
    at = 0
    while at < len(shapes):
        best = max(_repetitions(shapes, at), key=lambda block: (block.period * block.count, -block.period))
        last = blocks[-1] if blocks else None
        if best.count == 1 and last and last.count == 1:
            blocks[-1] = Block(last.begin, last.period + 1, 1)
        else:
            blocks.append(best)
        at = best.begin + best.period * best.count
    return blocks


def _repetitions(shapes: Sequence[Hashable], begin: int) -> Iterator[Block]:
    yield Block(begin, 1, 1)
    for period in range(1, MAX_PERIOD + 1):
        count = 1
        while shapes[begin : begin + period] == shapes[begin + count * period : begin + (count + 1) * period]:
            count += 1
        if count > 1:
            yield Block(begin, period, count)


def _shape(schedule: Schedule, step: Segment | Start | Wait) -> Hashable:
    """What a step of one block has in common with the same step of the next."""
    if isinstance(step, Segment):
        return step.end - step.begin, step.flops
    collective = schedule.collectives[step.collective]
    return type(step), collective.kind, _NUMBER.sub("#", collective.name), collective.bytes_per_peer


def work_in(nodes: Sequence[Node], inside: Sequence[int]) -> list[str]:
    """Names of the up to three nodes that are most of the work, in the order in which they run; at least one."""
    flops = sum(nodes[index].flops for index in inside)
    if not flops:
        return []
    heavy = sorted(inside, key=lambda index: -nodes[index].flops)[:3]
    named = {index for index in heavy if nodes[index].flops >= _NAMED_SHARE * flops} or {*heavy[:1]}
    return [short_name(nodes[index].name) for index in inside if index in named]


def short_name(name: str) -> str:
    """A node's name without the number of its block, what stands before it, and the operation's own name."""
    return _BLOCK.sub("", name).removesuffix(".linear")
