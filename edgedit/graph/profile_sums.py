"""Where the steps of a profiled run spent their time, added up. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edgedit.parallel.timeline import COMPUTE, EXCHANGE, REQUEST, WAIT, Slice


@dataclass
class Sum:
    """Slices of one kind. `flops` and `nbytes` are those of the nodes; `nbytes` of exchanges is what was sent."""

    calls: int = 0
    seconds: float = 0.0
    wait_s: float = 0.0
    flops: int = 0
    nbytes: int = 0

    @property
    def gflop_per_s(self) -> float | None:
        return self.flops / self.seconds / 1e9 if self.flops and self.seconds else None


@dataclass
class Profile:
    """The sums of one rank, over all its steps; what lies outside of a step is in `phases` only.

    kinds      operator, or kind of collective -> its slices
    segments   "graph, segment number" -> its nodes
    exchanges  collective by name -> its parts together
    phases     phase of the request -> seconds, denoising included
    """

    steps: int = 0
    step_s: float = 0.0
    compute_s: float = 0.0
    exchange_s: float = 0.0
    wait_s: float = 0.0
    kinds: dict[str, Sum] = field(default_factory=dict)
    segments: dict[str, Sum] = field(default_factory=dict)
    exchanges: dict[str, Sum] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def overhead_s(self) -> float:
        """What of the steps is none of the three: ggml's start of every node, Python, the solver."""
        return self.step_s - self.compute_s - self.exchange_s - self.wait_s


def summed(slices: Iterable[Slice]) -> Profile:
    """The profile of a rank's slices."""
    slices = list(slices)
    profile = Profile()
    steps = sorted((s.begin_s, s.end_s) for s in slices if (s.track, s.category) == (REQUEST, "step"))
    profile.steps = len(steps)
    profile.step_s = sum(end - begin for begin, end in steps)
    for piece in slices:
        if piece.track == REQUEST:
            if piece.category == "phase":
                profile.phases[piece.name] = profile.phases.get(piece.name, 0.0) + piece.seconds
        elif _is_within(piece, steps):
            _add(profile, piece)
    profile.kinds = dict(sorted(profile.kinds.items(), key=lambda item: -item[1].seconds))
    return profile


def _is_within(piece: Slice, steps: Sequence[tuple[float, float]]) -> bool:
    index = bisect_right(steps, (piece.begin_s, float("inf"))) - 1
    return index >= 0 and piece.end_s <= steps[index][1]


def _add(profile: Profile, piece: Slice) -> None:
    args = piece.args
    if piece.category == "segment":
        _count(profile.segments, f"{args['graph']}, {args['segment']}", piece, args["flops"], 0)
    elif piece.track == COMPUTE:
        profile.compute_s += piece.seconds
        _count(profile.kinds, piece.category, piece, args["flops"], args["nbytes"])
    elif piece.track == EXCHANGE:
        profile.exchange_s += piece.seconds
        # A collective has several parts. It is counted, with its bytes, where it starts.
        starts = args["part"] == "start"
        nbytes = args["bytes_sent"] if starts else 0
        _count(profile.kinds, piece.category, piece, 0, nbytes, calls=args["part"] != "wait")
        _count(profile.exchanges, args["collective"], piece, 0, nbytes, calls=starts)
    elif piece.track == WAIT:
        profile.wait_s += piece.seconds
        profile.exchanges.setdefault(args["collective"], Sum()).wait_s += piece.seconds


def _count(sums: dict[str, Sum], name: str, piece: Slice, flops: int, nbytes: int, calls: int = 1) -> None:
    found = sums.setdefault(name, Sum())
    found.calls += calls
    found.seconds += piece.seconds
    found.flops += flops
    found.nbytes += nbytes


def as_json(profile: Profile) -> Mapping[str, Any]:
    """The profile as plain values, in seconds over all steps."""
    return {**asdict(profile), "overhead_s": profile.overhead_s}
