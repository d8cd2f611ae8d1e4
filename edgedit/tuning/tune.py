"""Measures a machine: what each rank computes, and the links between them. All ranks of a context call it together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from edgedit import host
from edgedit.parallel.mesh import WORLD
from edgedit.tuning import machine
from edgedit.tuning.effort import Effort
from edgedit.tuning.machine import INTER, INTRA, Link, Machine
from edgedit.tuning.measure import measure_rates, median_rates
from edgedit.tuning.measure_links import measure_links

if TYPE_CHECKING:
    from edgedit.parallel.context import ParallelContext

# The axes of a context that are used for links: all ranks of a node, and those of equal place on all nodes.
AXES = {INTRA: "ulysses", INTER: "ring"}


def measure_machine(
    context: ParallelContext,
    dtypes: Sequence[str],
    threads: int | None,
    effort: Effort,
    note: Callable[[str], None],
) -> Machine:
    """The machine of these ranks, equal on all of them; `note` is told what is measured next."""
    config, world = context.config, context.group(WORLD)
    rates = {}
    for dtype in dtypes:
        note(f"products and attention with {dtype} weights")
        own = measure_rates(
            config, dtype, threads, effort, lambda: world.barrier(label="start of a measurement")
        )
        told = machine.as_json(Machine("", {dtype: own}))
        everybody = [
            machine.from_json(json.loads(data)).rates[dtype]
            for data in world.exchange(json.dumps(told).encode(), label="rates")
        ]
        rates[dtype] = median_rates(everybody)
    links: dict[str, dict[str, Link]] = {}
    for place, axis in AXES.items():
        if context.group(axis).size > 1:
            note(f"links between {'ranks of a node' if place == INTRA else 'nodes'}")
            count = threads or host.default_threads(config.local_world_size)
            links[place] = measure_links(context, axis, count, effort)
    memory = host.memory_nbytes()
    measured = Machine(
        "this host" if INTER not in links else "these hosts",
        rates,
        links,
        config.local_world_size,
        None if memory is None else memory // config.local_world_size,
        config.comm,
    )
    # What differs by a rank's own clock is taken from one of them.
    return machine.from_json(context.broadcast_object(machine.as_json(measured)))
