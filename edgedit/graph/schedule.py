"""What the planner returns: an order of the nodes, cut into segments at the collectives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from edgedit.graph.collective import Collective


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of nodes between two collective nodes: positions `begin` to `end` (exclusive) of the order.

    reads      ids of nodes of earlier segments that it reads directly, ascending; any number of them
    receives   positions of the collectives whose received data it reads, directly or through a view
    nbytes     storage that its nodes own
    """

    index: int
    begin: int
    end: int
    flops: int
    nbytes: int
    reads: tuple[int, ...]
    receives: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """The collective is issued here; its start node stands at `position` of the order."""

    collective: int
    position: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The collective must have arrived here; its wait node stands at `position` of the order."""

    collective: int
    position: int


@dataclass(frozen=True, slots=True)
class Flight:
    """What runs between the start of a collective and its wait."""

    segments: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """A plan for one rank. Order and steps are the same on all ranks that run the same program.

    order        ids of all nodes, each once, but for views that nobody reads
    steps        segments, starts and waits in the order in which they run
    collectives  the program's collectives; steps name them by their position here
    retained     send tensor -> (first start step, last wait step): neither freed nor overwritten in between
    overlapped   per collective, the compute inside its flight
    signature    one line per collective, in the order of their starts; equal on all ranks of a group
    digest       SHA-256 of the signature, hexadecimal
    peak_nbytes  most storage live at once, without leaves
    buffer_nbytes  what ggml's allocator takes for it: less where it computes in place, more where it leaves holes
    """

    order: tuple[int, ...]
    steps: tuple[Segment | Start | Wait, ...]
    collectives: tuple[Collective, ...]
    retained: Mapping[int, tuple[int, int]]
    overlapped: tuple[Flight, ...]
    signature: tuple[str, ...]
    digest: str
    peak_nbytes: int
    buffer_nbytes: int

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(step for step in self.steps if isinstance(step, Segment))

    @property
    def bytes_sent(self) -> int:
        """Payload that this rank sends to others each time the schedule runs."""
        return sum(collective.bytes_sent for collective in self.collectives)

    @property
    def flops(self) -> int:
        return sum(segment.flops for segment in self.segments)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes that the schedule communicates over, in order of first use."""
        return tuple(
            dict.fromkeys(
                self.collectives[step.collective].axis for step in self.steps if isinstance(step, Start)
            )
        )

    def signature_of(self, axis: str) -> tuple[str, ...]:
        """The lines that the ranks of one group of `axis` compare.

        Other groups of the same axis may differ: the two guidance branches may hold texts of unlike lengths.
        """
        starts = [step.collective for step in self.steps if isinstance(step, Start)]
        return tuple(
            line for line, c in zip(self.signature, starts, strict=True) if self.collectives[c].axis == axis
        )


def digest_of(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def first_difference(a: Sequence[str], b: Sequence[str]) -> tuple[int, str | None, str | None] | None:
    """Where two signatures part: (line number from 0, line of a, line of b), None for a side that has ended.

    Returns None when they are equal.
    """
    for number, (left, right) in enumerate(zip_longest(a, b)):
        if left != right:
            return number, left, right
    return None
