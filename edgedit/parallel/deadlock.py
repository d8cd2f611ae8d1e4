"""Ranks that wait for each other in different calls: all alive, none ever to go on.

A rank that waits in a call needs every rank of the group that has not begun the call, or waits in another one in its
place. Where those needs run in a circle of waiting ranks, the calls of the ranks differ, and that is an error to report
instead of a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

# A circle counts once every rank in it has reported the same wait again: then all of them waited at one instant.
_CONFIRMATIONS = 2


class Report(NamedTuple):
    """What a rank last said of itself. `number` counts its reports, `group` is empty while it does not wait."""

    number: int
    group: str
    sequence: int
    call: str
    calls_made: Mapping[str, int]

    def needs(self, peer: Report) -> bool:
        """Whether this rank waits for a peer of its group to begin the call, or to leave another one of its number."""
        if peer.calls_made.get(self.group, 0) < self.sequence:
            return True
        return peer.wait == self.wait and peer.call != self.call

    @property
    def wait(self) -> tuple[str, int]:
        return self.group, self.sequence


class DeadlockDetector:
    """Looks for a lasting circle through one rank; `members(axis, rank)` are the world ranks of its group."""

    def __init__(self, rank: int, members: Callable[[str, int], list[int]]) -> None:
        self._rank = rank
        self._members = members
        self._suspects: dict[int, Report] = {}

    def look(self, reports: Mapping[int, Report]) -> str | None:
        """The circle in words, once it is certain. `reports` includes this rank's own."""
        circle = self._find_circle(reports)
        if [(rank, reports[rank].wait) for rank in circle] != [
            (rank, r.wait) for rank, r in self._suspects.items()
        ]:
            self._suspects = {rank: reports[rank] for rank in circle}
            return None
        if not circle or any(reports[r].number < self._suspects[r].number + _CONFIRMATIONS for r in circle):
            return None
        waits = ", ".join(f"rank {rank} waits in {reports[rank].call}" for rank in sorted(circle))
        return f"the ranks wait for each other: {waits}"

    def _find_circle(self, reports: Mapping[int, Report]) -> list[int]:
        """A path of needs from this rank into a circle, in the order of the path; empty if there is none."""
        path: list[int] = []
        harmless: set[int] = set()

        def follow(rank: int) -> bool:
            if rank in path:
                return True
            report = reports.get(rank)
            if report is None or not report.group or rank in harmless:
                return False
            path.append(rank)
            for peer in self._members(report.group, rank):
                if peer != rank and peer in reports and report.needs(reports[peer]) and follow(peer):
                    return True
            harmless.add(path.pop())
            return False

        return path if follow(self._rank) else []
