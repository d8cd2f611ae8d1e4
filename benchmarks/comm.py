"""Ways of running one step over two ranks: who calls the collectives, and what carries them.

    mpiexec -n 2 python benchmarks/comm.py [--model mini] [--pairs 5]

All ways share weights and take turns in one launch, one thread a rank. `exchange_share` is the part of a step that
world rank 0 spends inside collectives, waiting for a slower peer included.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from typing import Any

import numpy as np
from measurement import alternate, summary
from record import save

from edgedit import ParallelConfig, ParallelContext
from edgedit.models.flux import FluxNetwork, FluxTransformer
from edgedit.models.random_flux import SIZES, RandomCheckpoint, random_request
from edgedit.weights.loader import load

WAYS = {
    f"{comm} {backend}": {"comm": comm, "backend": backend}
    for comm in ("graph-cut", "in-graph")
    for backend in ("mpi", "shm")
}
REFERENCE = "graph-cut mpi"


class Way:
    """A transformer in a context of its own; keeps the share of each step that was exchange."""

    def __init__(self, model: FluxTransformer, request: dict[str, Any]) -> None:
        self.model = model
        self.request = request
        self.shares: list[float] = []

    def __call__(self) -> np.ndarray:
        result = self.model(**self.request)
        step = next(reversed(self.model._executors.values()))  # used last
        self.shares.append(1 - step.times.compute_s / step.times.total_s)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SIZES, default="mini")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ops", default="auto", choices=("auto", "fused", "generic"))
    arguments = parser.parse_args()
    config = SIZES[arguments.model].config
    network = FluxNetwork(config)
    checkpoint: Any = RandomCheckpoint(network)
    request = random_request(arguments.model)

    with contextlib.ExitStack() as stack:
        contexts = {}
        for name, words in WAYS.items():
            layout = ParallelConfig.from_env(ulysses_degree=2, ops=arguments.ops, **words)
            contexts[name] = stack.enter_context(ParallelContext(layout))
        context = contexts[REFERENCE]
        weights = load(network, checkpoint, kernels=context.config.kernels)
        ways = {
            name: Way(FluxTransformer(config, network, weights, "f32", 1, context), request)
            for name, context in contexts.items()
        }
        results = [way() for way in ways.values()]
        assert all(result.tobytes() == results[0].tobytes() for result in results), "the ways differ"
        seconds = alternate(ways, arguments.pairs, warmup=1)
        if context.rank == 0:
            rows = summary(seconds, REFERENCE)
            for name, way in ways.items():
                rows[name]["exchange_share"] = round(statistics.median(way.shares[-arguments.pairs :]), 4)
            measured = {
                "model": arguments.model,
                "ranks": 2,
                "threads": 1,
                "ops": context.config.ops,
                "kernels": context.config.kernels,
                "pairs": arguments.pairs,
            }
            save(f"comm-{arguments.model}-{context.config.ops}", measured | {"measured": rows})
        context.group("world").barrier()


if __name__ == "__main__":
    main()
