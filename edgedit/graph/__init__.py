"""Graphs: built with ggml, cut at collectives by a pure planner, run segment by segment.

Attributes load on first use, so the planner imports without ggml, MPI or numpy.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Node": "node",
    "Collective": "collective",
    "GraphDescription": "description",
    "Schedule": "schedule",
    "Segment": "schedule",
    "Start": "schedule",
    "Wait": "schedule",
    "first_difference": "schedule",
    "plan": "planner",
    "GraphBuilder": "builder",
    "Executor": "executor",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
