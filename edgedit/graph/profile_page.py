"""The profile of a run as tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from edgedit.graph.page import table
from edgedit.graph.profile_sums import Profile, Sum
from edgedit.graph.units import binary

_SLOWEST_SEGMENTS = 5


def as_text(ranks: Sequence[Profile]) -> str:
    """Kinds of nodes, slowest segments and exchanges of world rank 0, then all ranks; milliseconds of one step."""
    first = ranks[0]
    sections = [_kinds(first), _segments(first), _exchanges(first), _ranks(ranks), _phases(first)]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _kinds(profile: Profile) -> list[str]:
    steps = max(1, profile.steps)
    rows = [["kind", "calls", "ms", "share", "GFLOP/s"]]
    rows += [[kind, *_columns(found, profile)] for kind, found in profile.kinds.items()]
    rest = (("waiting for peers", profile.wait_s), ("overhead", profile.overhead_s))
    rows += [[name, "", _ms(seconds, profile), _share(seconds, profile), ""] for name, seconds in rest]
    rows.append(["step", "", _ms(profile.step_s, profile), _share(profile.step_s, profile), ""])
    return [f"Rank 0, one of {steps} steps:", *table(rows, left=frozenset({0}))]


def _columns(found: Sum, profile: Profile) -> list[str]:
    rate = "" if found.gflop_per_s is None else f"{found.gflop_per_s:.1f}"
    calls = f"{found.calls / max(1, profile.steps):g}"
    return [calls, _ms(found.seconds, profile), _share(found.seconds, profile), rate]


def _segments(profile: Profile) -> list[str]:
    if len(profile.segments) < 2:
        return []
    slowest = sorted(profile.segments.items(), key=lambda item: -item[1].seconds)[:_SLOWEST_SEGMENTS]
    rows = [["graph, segment", "calls", "ms", "share", "GFLOP/s"]]
    rows += [[name, *_columns(found, profile)] for name, found in slowest]
    return [f"Slowest of {len(profile.segments)} segments:", *table(rows, left=frozenset({0}))]


def _exchanges(profile: Profile) -> list[str]:
    """Collectives whose names differ in numbers alone share a line."""
    alike: dict[str, Sum] = {}
    for name, found in profile.exchanges.items():
        sum_ = alike.setdefault(re.sub(r"\d+", "*", name), Sum())
        sum_.calls += found.calls
        sum_.seconds += found.seconds
        sum_.wait_s += found.wait_s
        sum_.nbytes += found.nbytes
    if not alike:
        return []
    steps = max(1, profile.steps)
    rows = [["exchange", "calls", "ms moving", "ms waiting", "sent"]]
    for name, found in alike.items():
        calls = f"{found.calls / steps:g}"
        moving, waiting = _ms(found.seconds, profile), _ms(found.wait_s, profile)
        rows.append([name, calls, moving, waiting, binary(found.nbytes / steps)])
    return table(rows, left=frozenset({0}))


def _ranks(ranks: Sequence[Profile]) -> list[str]:
    rows = [["rank", "step", "compute", "exchange", "wait", "overhead"]]
    for rank, profile in enumerate(ranks):
        parts = (
            profile.step_s,
            profile.compute_s,
            profile.exchange_s,
            profile.wait_s,
            profile.overhead_s,
        )
        rows.append([str(rank), *(_ms(seconds, profile) for seconds in parts)])
    return ["Milliseconds of a step, node by node:", *table(rows)]


def _phases(profile: Profile) -> list[str]:
    return [", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in profile.phases.items())]


def _ms(seconds: float, profile: Profile) -> str:
    return f"{seconds / max(1, profile.steps) * 1e3:.2f}"


def _share(seconds: float, profile: Profile) -> str:
    return f"{seconds / profile.step_s:.1%}" if profile.step_s else ""
