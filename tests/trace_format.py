"""What a file in Chrome's trace-event format has to hold, told from its description alone."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

THREADS = {1: "request", 2: "compute", 3: "exchange", 4: "wait"}
# Times are rounded to nanoseconds, in microseconds.
ROUNDING_US = 0.002


def check_trace(path: Path, num_ranks: int) -> dict[str, Any]:
    """The trace of a file; fails where it breaks the format, or slices of one thread overlap without nesting."""
    trace = json.loads(path.read_text())
    assert trace["displayTimeUnit"] in ("ms", "ns")
    names = defaultdict(dict)
    slices = defaultdict(list)
    for event in trace["traceEvents"]:
        assert event["pid"] in range(num_ranks)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            names[event["pid"], event["tid"]].update(event["args"])
            continue
        assert event["ph"] == "X", event
        assert event["name"] and event["cat"], event
        assert event["ts"] >= 0 and event["dur"] >= 0, event
        slices[event["pid"], event["tid"]].append(event)
    for rank in range(num_ranks):
        assert names[rank, 0]["name"] == f"rank {rank}"
        assert {thread: names[rank, thread]["name"] for thread in THREADS} == THREADS
    for events in slices.values():
        check_nesting(events)
    assert min(event["ts"] for events in slices.values() for event in events) == 0
    return trace


def check_nesting(events: list[dict[str, Any]]) -> None:
    """Slices of one thread lie inside each other or apart; they come sorted, the outer one first."""
    open_ends: list[float] = []
    last = -1.0
    for event in events:
        assert event["ts"] >= last, f"{event['name']} comes after a later slice"
        last = event["ts"]
        while open_ends and open_ends[-1] <= event["ts"] + ROUNDING_US:
            open_ends.pop()
        end = event["ts"] + event["dur"]
        assert not open_ends or end <= open_ends[-1] + ROUNDING_US, (
            f"{event['name']} sticks out of what it is in"
        )
        open_ends.append(end)


def of(trace: dict[str, Any], rank: int, thread: str, category: str | None = None) -> list[dict[str, Any]]:
    """The slices of one thread of a rank, those of one category if that is given."""
    (number,) = (tid for tid, name in THREADS.items() if name == thread)
    return [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X"
        and (event["pid"], event["tid"]) == (rank, number)
        and category in (None, event["cat"])
    ]


def inside(event: dict[str, Any], outer: dict[str, Any]) -> bool:
    begins = event["ts"] >= outer["ts"] - ROUNDING_US
    return begins and event["ts"] + event["dur"] <= outer["ts"] + outer["dur"] + ROUNDING_US
