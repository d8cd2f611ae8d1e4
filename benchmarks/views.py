"""What cutting a graph costs: the nodes of one step as one graph, and as views cut where Ulysses would cut.

    python benchmarks/views.py [--model mini] [--pairs 15]

One rank, no exchange: only the cuts differ. Each attention has four (start and wait of the exchange before and of the
one after it), the final gather two.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import time
from collections.abc import Sequence

from measurement import alternate, summary
from record import save

from edgedit.graph._ggml import lib
from edgedit.graph.executor import Executor
from edgedit.graph.node import Node
from edgedit.models.random_flux import SIZES, random_request, random_transformer


def cut_positions(nodes: Sequence[Node]) -> list[int]:
    """Positions before which a graph of one rank is cut, from its attention nodes."""
    cuts = []
    for node in nodes:
        if node.op in ("attention", "flash_attn_ext"):
            operands = [_owner(nodes, source) for source in node.inputs]
            cuts += [min(operands), max(operands) + 1, node.index + 1, node.index + 2]
    return sorted({*cuts, len(nodes) - 2, len(nodes) - 1})


def _owner(nodes: Sequence[Node], index: int) -> int:
    """The node whose storage a view shows."""
    base = nodes[index].base
    return index if base is None else _owner(nodes, base)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SIZES, default="mini")
    parser.add_argument("--pairs", type=int, default=15)
    arguments = parser.parse_args()
    model = random_transformer(arguments.model)
    model(**random_request(arguments.model))
    executor = next(reversed(model._executors.values()))  # used last: that of the step
    nodes = [executor._builder.nodes[index] for index in executor.schedule.order]
    assert [node.index for node in nodes] == list(range(len(nodes))), "one rank runs in program order"
    cuts = [0, *cut_positions(nodes), len(nodes)]
    views = [lib.ggml_graph_view(executor._graph, a, b) for a, b in itertools.pairwise(cuts)]
    whole = [lib.ggml_graph_view(executor._graph, 0, len(nodes))]
    seconds = alternate(
        {
            "one_graph": lambda: compute(executor, whole),
            "views": lambda: compute(executor, views),
        },
        arguments.pairs,
        clock=time.process_time,  # one thread; what else the machine does counts less
    )
    save(
        f"views-{arguments.model}",
        {
            "model": arguments.model,
            "threads": 1,
            "kernels": model.context.config.kernels,
            "pairs": arguments.pairs,
            "nodes": cuts[-1],
            "views": len(views),
        }
        | {"measured": summary(seconds, "one_graph")},
    )


def compute(executor: Executor, views: Sequence[ctypes.Structure]) -> None:
    for view in views:
        lib.ggml_backend_graph_compute(executor._backend.pointer, ctypes.pointer(view))


if __name__ == "__main__":
    main()
