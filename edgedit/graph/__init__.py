"""Graphs: built with ggml, cut at collectives by a pure planner, run segment by segment."""

from __future__ import annotations

from edgedit._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Collective": "edgedit.graph.collective",
        "Executor": "edgedit.graph.executor",
        "GraphBuilder": "edgedit.graph.builder",
        "GraphDescription": "edgedit.graph.description",
        "Node": "edgedit.graph.node",
        "Schedule": "edgedit.graph.schedule",
        "Segment": "edgedit.graph.schedule",
        "Start": "edgedit.graph.schedule",
        "Wait": "edgedit.graph.schedule",
        "first_difference": "edgedit.graph.schedule",
        "plan": "edgedit.graph.planner",
    },
)
