"""The layouts of scaling.py: ranks and threads, what they compute, and which are compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

PEAK = "peak"


@dataclass(frozen=True)
class Layout:
    who: str  # edgedit, diffusers, or the loop at the processor's peak
    ranks: int
    threads: int  # of each rank
    branches: int = 1
    axis: str = "ulysses"  # that several ranks share

    @property
    def name(self) -> str:
        if self.who == PEAK:
            return f"{PEAK} {self.ranks}x{self.threads}"
        what = "branches" if self.branches > 1 else "step"
        shared = f" {self.axis}" if self.ranks > 1 else ""
        return f"{self.who} {what} {self.ranks}x{self.threads}{shared}"


# one rank, perhaps one rank with all threads, and the ranks
Group = tuple[Layout, ...]


def groups(ranks: int, threads: int, with_diffusers: bool) -> list[Group]:
    """A step over `ranks` of edgedit and of diffusers, both guidance branches over two ranks of edgedit, and a whole
    step on each of `ranks`, which share nothing: what they slow each other down by, no layout can make up for."""

    def steps(who: str) -> Group:
        return Layout(who, 1, threads), Layout(who, 1, ranks * threads), Layout(who, ranks, threads)

    branches = (
        Layout("edgedit", 1, threads, branches=2),
        Layout("edgedit", 1, 2 * threads, branches=2),
        Layout("edgedit", 2, threads, branches=2, axis="cfg"),
    )
    apart = Layout("edgedit", 1, threads), Layout("edgedit", ranks, threads, axis="dp")
    return [steps("edgedit"), branches, apart, *([steps("diffusers")] if with_diffusers else [])]


def peaks(ranks: int, threads: int) -> Group:
    """The loop at the peak on the cores of one rank and of all: what no layout can be faster than."""
    return Layout(PEAK, 1, threads), Layout(PEAK, 1, ranks * threads)


def peers(group: Group, layouts: Iterable[Layout]) -> list[tuple[Layout, Layout]]:
    """The layouts of edgedit in a group, each with what does the same in diffusers."""
    same = {layout: replace(layout, who="diffusers") for layout in group if layout.who == "edgedit"}
    return [(own, other) for own, other in same.items() if other in layouts]


def comparisons(group: Group) -> list[tuple[Layout, Layout]]:
    """Whose time is divided by whose: more ranks and more threads by one of each, ranks by as many threads."""
    one, more, *shared = group
    return [*((ranks, one) for ranks in (*shared, more)), *((ranks, more) for ranks in shared)]
