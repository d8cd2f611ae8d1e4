"""Builds ggml graphs that may hold collectives."""

from __future__ import annotations

from edgedit.graph.ops.exchange import ExchangeOps
from edgedit.graph.ops.gathered import GatheredOps


class GraphBuilder(ExchangeOps, GatheredOps):
    """One graph: leaves, nodes and collectives, in program order.

    Shapes are in numpy order and are checked here, before ggml can abort the process. The operations stand in
    `edgedit/graph/ops`, one kind per file; `FusedOps` says what there is to choose.

        b = GraphBuilder("example")
        x = b.input("x", (2, 4))
        b.output("y", b.silu(x))
    """
