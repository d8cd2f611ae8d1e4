"""Ranks, groups of ranks, and the messages between them."""

from __future__ import annotations

from edgedit._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Buffer": "edgedit.parallel.buffer",
        "Mesh": "edgedit.parallel.mesh",
        "ParallelContext": "edgedit.parallel.context",
        "ProcessGroup": "edgedit.parallel.process_group",
        "Work": "edgedit.parallel.process_group",
    },
)
