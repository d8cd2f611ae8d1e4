"""Counts of what must not happen inside a denoising step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Process-wide counts: graphs built, graphs planned, buffers allocated, and runs of a compiled graph."""

    graphs_built: int = 0
    graphs_compiled: int = 0
    buffers_allocated: int = 0
    runs: int = 0


COUNTERS = Counters()
