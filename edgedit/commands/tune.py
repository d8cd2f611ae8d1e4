"""``edgedit tune``: measure this host once, alone or under mpirun, for ``--auto`` to choose layouts by."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from edgedit import config, kernels, launcher
from edgedit.commands.layouts import measured_options
from edgedit.commands.options import LAUNCHED_BACKENDS, add_host_arguments, bind_rank
from edgedit.commands.request_arguments import DTYPES
from edgedit.config import ParallelConfig
from edgedit.graph.page import table
from edgedit.tuning import machine
from edgedit.tuning.cache import Measurements
from edgedit.tuning.effort import EFFORTS
from edgedit.tuning.machine import INTER, INTRA

if TYPE_CHECKING:
    from edgedit.tuning.machine import Machine

_WORDS = {
    "backend": ("how ranks talk", LAUNCHED_BACKENDS),
    "comm": ("who runs collectives", config.COMMS),
    "ops": ("nodes that move layouts", config.OPS),
    "kernels": ("who multiplies on the CPU", kernels.CHOICES),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dtype", nargs="+", default=["f32"], choices=DTYPES, metavar="TYPE",
        help=f"types of weights to measure with: {', '.join(DTYPES)} (default: f32)")  # fmt: skip
    add(
        "--effort",
        default="full",
        choices=EFFORTS,
        help="quick: small sizes, to try it (default: %(default)s)",
    )
    add("--json", action="store_true", help="print one JSON object instead of text")
    add_host_arguments(parser)
    for word, (what, legal) in _WORDS.items():
        add(f"--{word}", default="auto", help=f"{what}: {', '.join(legal)}")


def run(args: argparse.Namespace) -> int:
    parallel = _config({word: getattr(args, word) for word in _WORDS})
    bind_rank(args, parallel)

    from edgedit.parallel.context import ParallelContext
    from edgedit.tuning.tune import measure_machine

    with ParallelContext(parallel) as context:

        def note(what: str) -> None:
            context.note(phase=f"measuring {what}")
            if context.rank == 0:
                print(f"edgedit: measuring {what}", file=sys.stderr, flush=True)

        measured = measure_machine(context, args.dtype, args.threads, EFFORTS[args.effort], note)
        kept = Measurements(context.config.kernels, options=measured_options(args))
        if parallel.local_rank == 0:
            kept.add(parallel.local_world_size, measured)
        if context.rank == 0:
            values = {"path": str(kept.path), "of": kept.identity, "machine": machine.as_json(measured)}
            print(json.dumps(values) if args.json else _as_text(measured, str(kept.path)))
        context.group("world").barrier()
    return 0


def _config(words: dict[str, Any]) -> ParallelConfig:
    """All ranks of a host on one axis, hosts on another. ValueError where hosts have unlike numbers of ranks."""
    from edgedit.tuning.tune import AXES

    launch = launcher.detect(os.environ)
    hosts, rest = divmod(launch.world_size, launch.local_world_size)
    if rest:
        raise ValueError(
            f"{launch.local_world_size} of {launch.world_size} ranks are on this host; tune needs equally many on each"
        )
    degrees = {INTRA: launch.local_world_size, INTER: hosts}
    options = {**words, **{f"{AXES[place]}_degree": degree for place, degree in degrees.items()}}
    return ParallelConfig.from_env(None, **options)


def _as_text(measured: Machine, path: str) -> str:
    """Rates as GFLOP/s and GB/s, times as microseconds."""
    rows = [["weights", "products", "attention", "other GB/s", "node us", "pass us"]]
    for dtype, rates in measured.rates.items():
        curves = (
            f"{curve.points[0][1] / 1e9:.0f} to {curve.points[-1][1] / 1e9:.0f} GFLOP/s"
            for curve in (rates.product, rates.attention)
        )
        numbers = rates.other / 1e9, rates.node_s * 1e6, rates.pass_s * 1e6
        rows.append([dtype, *curves, *(f"{number:.1f}" for number in numbers)])
    lines = [
        f"each of {measured.ranks_per_node} rank(s), from the smallest size to the largest:",
        *table(rows),
    ]
    for place, links in measured.links.items():
        rows = [[f"{place} link", "latency us", "GB/s", "overlap"]]
        for kind, link in links.items():
            latency, rate = f"{link.latency_s * 1e6:.1f}", f"{link.bytes_per_s / 1e9:.1f}"
            rows.append([kind, latency, rate, f"{link.overlap:.0%}"])
        lines += ["", *table(rows)]
    if not measured.links:
        lines += ["", "links were not measured, for there is one rank: mpirun -n 2 edgedit tune"]
    return "\n".join([*lines, "", f"kept in {path}"])
