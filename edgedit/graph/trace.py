"""Timelines in Chrome's trace-event format, which Perfetto (ui.perfetto.dev) and chrome://tracing open. Pure.

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgedit.parallel.timeline import TRACKS, Slice

_US = 1e6


def as_trace(ranks: Sequence[Sequence[Slice]], about: Mapping[str, Any]) -> dict[str, Any]:
    """One process per rank, one thread per track; times in microseconds since the first slice of any rank.

    `about` is kept beside the events, under the name "edgedit".
    """
    begins = [piece.begin_s for slices in ranks for piece in slices]
    origin_s = min(begins, default=0.0)
    events: list[dict[str, Any]] = []
    for rank, slices in enumerate(ranks):
        events += _names(rank)
        events += sorted(_events(rank, slices, origin_s), key=lambda event: (event["ts"], -event["dur"]))
    return {"traceEvents": events, "displayTimeUnit": "ms", "edgedit": dict(about)}


def _names(rank: int) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", rank, 0, {"name": f"rank {rank}"})
    yield _metadata("process_sort_index", rank, 0, {"sort_index": rank})
    for thread, track in enumerate(TRACKS, 1):
        yield _metadata("thread_name", rank, thread, {"name": track})
        yield _metadata("thread_sort_index", rank, thread, {"sort_index": thread})


def _metadata(name: str, rank: int, thread: int, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": rank, "tid": thread, "args": dict(args)}


def _events(rank: int, slices: Sequence[Slice], origin_s: float) -> Iterator[dict[str, Any]]:
    for piece in slices:
        # Both ends are rounded alike, so that slices inside each other stay so.
        begin, end = (round((at - origin_s) * _US, 3) for at in (piece.begin_s, piece.end_s))
        yield {
            "ph": "X",
            "name": piece.name,
            "cat": piece.category,
            "pid": rank,
            "tid": 1 + TRACKS.index(piece.track),
            "ts": begin,
            "dur": round(end - begin, 3),
            "args": dict(piece.args),
        }
