"""One rank of auto_layout.py: times a step of a case in one layout after the other.

    mpiexec -n 2 python benchmarks/auto_layout_rank.py "flux" '[{"cfg": 1, "ulysses": 2}]' --repeats 5

Prints, on world rank 0, a list of times for each layout: those of the slowest rank of each step.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping

from auto_layout_cases import Case, case_of

from edgedit import binding, launcher
from edgedit.config import ParallelConfig
from edgedit.models.diffusion_transformer import DiffusionTransformer
from edgedit.models.random_flux import RandomCheckpoint
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.branches import Branches
from edgedit.pipelines.replicas import Replicas
from edgedit.weights.loader import load

_OF_BATCH = ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep")


def loaded(case: Case, context: ParallelContext, threads: int | None) -> DiffusionTransformer:
    network = case.network.network_on(case.config, context.config, case.dtype)
    weights = load(network, RandomCheckpoint(network), case.dtype, kernels=context.config.kernels)
    return case.network(case.config, network, weights, case.dtype, threads, context)


def seconds_of_steps(
    case: Case, degrees: Mapping[str, int], threads: int | None, repeats: int
) -> list[float]:
    """Times of steps, equal on all ranks, after one that does not count."""
    options = {f"{axis}_degree": degree for axis, degree in degrees.items()}
    with ParallelContext(ParallelConfig.from_env(None, **options)) as context:
        world = context.group("world")
        model = loaded(case, context, threads)
        replicas = Replicas(context, case.batch)
        own = slice(replicas.begin, replicas.begin + replicas.shares[replicas.group.rank])
        request = {name: x[own] if name in _OF_BATCH else x for name, x in case.request().items()}
        steps, pooled = request.pop("timestep")[None], request.pop("pooled_projections")
        inputs = {**request, "modulations": model.modulations(steps, pooled)[0]}
        branches = Branches(context, case.branches)
        times = []
        for _ in range(repeats + 1):
            world.barrier(label="start of a step")
            began = time.perf_counter()
            branches.predict(lambda branch: model.velocity(**inputs))
            took = json.dumps(time.perf_counter() - began).encode()
            times.append(max(map(json.loads, world.exchange(took, label="times"))))
        model.close()
    return times[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case")
    parser.add_argument("layouts", type=json.loads)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    case, launch = case_of(arguments.case), launcher.detect(os.environ)
    binding.bind("auto", launch.local_rank, launch.local_world_size, arguments.threads)
    measured = [
        seconds_of_steps(case, degrees, arguments.threads, arguments.repeats) for degrees in arguments.layouts
    ]
    if launch.rank == 0:
        print(json.dumps(measured))


if __name__ == "__main__":
    main()
