"""What one rank did when: slices of time on a few tracks, kept while a run is profiled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# Slices of one track lie inside each other or apart, and those of different tracks never double a second, but for
# the request, which covers all others.
REQUEST, COMPUTE, EXCHANGE, WAIT = TRACKS = ("request", "compute", "exchange", "wait")

clock = time.perf_counter


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of time on one track, in seconds of this process's clock.

    category  what kind of thing: an operator such as "mul_mat", a kind of collective, or "segment", "phase", "step"
    args      facts about it, as plain values; one object may serve many slices
    """

    track: str
    category: str
    name: str
    begin_s: float
    end_s: float
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


class Timeline:
    """The slices of one rank, in no particular order."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self._phase: tuple[str, float] | None = None  # name, begin
        self._step: tuple[int, float] | None = None

    def add(
        self, track: str, category: str, name: str, begin_s: float, end_s: float, args: Mapping[str, Any]
    ) -> None:
        self.slices.append(Slice(track, category, name, begin_s, end_s, args))

    def add_exchange(
        self, kind: str, name: str, part: str, axis: str, dtype: str, bytes_sent: int, begin_s: float, end_s: float,
        waited_s: float,
    ) -> None:  # fmt: skip
        """A collective, or a part of it, of whose time `waited_s` went by before anything moved.

        `bytes_sent` counts for the whole collective.
        """
        moving_s = min(end_s, begin_s + waited_s)
        args = {"collective": name, "axis": axis, "dtype": dtype, "part": part, "bytes_sent": bytes_sent}
        label = f"{name} {part}"
        if waited_s > 0:
            self.add(WAIT, kind, label, begin_s, moving_s, args)
        self.add(EXCHANGE, kind, label, moving_s, end_s, args)

    def note(self, step: int | None, phase: str | None) -> None:
        """A phase or step begins, and the one before is over."""
        now = clock()
        self._end_step(now)
        if self._phase is not None and self._phase[0] != phase:
            self._end_phase(now)
        if phase is not None and self._phase is None:
            self._phase = phase, now
        if step is not None:
            self._step = step, now

    def finish(self) -> None:
        """The run is over."""
        now = clock()
        self._end_step(now)
        self._end_phase(now)

    def _end_step(self, now: float) -> None:
        if self._step is not None:
            step, began = self._step
            self.add(REQUEST, "step", f"step {step}", began, now, {"step": step})
            self._step = None

    def _end_phase(self, now: float) -> None:
        if self._phase is not None:
            name, began = self._phase
            self.add(REQUEST, "phase", name, began, now, {})
            self._phase = None


def packed(slices: list[Slice]) -> dict[str, Any]:
    """The slices as JSON values, equal facts once."""
    args: list[Mapping[str, Any]] = []
    number_of: dict[int, int] = {}
    rows = []
    for piece in slices:
        if id(piece.args) not in number_of:
            number_of[id(piece.args)] = len(args)
            args.append(piece.args)
        facts = number_of[id(piece.args)]
        rows.append([piece.track, piece.category, piece.name, piece.begin_s, piece.end_s, facts])
    return {"args": args, "slices": rows}


def unpacked(data: Mapping[str, Any]) -> Iterator[Slice]:
    """The slices that `packed` was given."""
    for track, category, name, begin_s, end_s, facts in data["slices"]:
        yield Slice(track, category, name, begin_s, end_s, data["args"][facts])
