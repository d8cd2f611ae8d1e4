"""What ranks and threads buy: one FLUX step, and one of both guidance branches, over the cores of this host.

    python benchmarks/scaling.py [--model mini] [--rounds 7] [--ranks 2] [--threads 1] [--dtype f32]

step       one forward pass          on 1 rank, on 1 rank with as many threads as all ranks have, with --ulysses
branches   one pass of each branch   on 1 rank, on 1 rank with as many threads as two ranks have, with --cfg 2
apart      one forward pass          on each rank, beside the others: what ranks lose that share nothing (named dp)
diffusers  one forward pass          on 1 rank, on 1 rank with all threads, with its own Ulysses over gloo
peak       multiply-adds in registers, on the cores of 1 rank and of all: how much faster these can be at all

The ranks of every layout are started once (edgedit's under mpiexec), load the same random weights, and sleep while it
is not their turn; layouts take turns, round by round. Ranks line up at a barrier, and a layout takes from when its
first rank began until its last one ended. Rank r keeps to the r-th share of the cores. edgedit's modulations are
computed ahead, as a pipeline does for all its steps at once.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from crew import Crew
from crews import diffusers_crew, edgedit_crew
from layouts import PEAK, Layout, comparisons, groups, peaks, peers
from measurement import in_turn, median, milliseconds, relative_error, time_ratio
from model_directory import describe, write_model, write_requests
from peak import ROUNDS, compile_peak, compiler_of_c
from race import SETTLE_S, say
from record import save

from edgedit.models.random_flux import SIZES

PEAK_ROUNDS = 8 * ROUNDS  # as long as a step of the smaller models


class Fleet:
    """The crew of every layout, and what each told, round by round."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._model = write_model(folder, arguments.model)
        self._requests = [str(path) for path in write_requests(folder, arguments.model, 2)]
        self._peak = compile_peak(folder)
        self._crews: dict[Layout, Crew] = {}
        self._prepared: dict[Layout, dict[str, Any]] = {}
        self._told: dict[Layout, list[dict[str, Any]]] = {}

    def start(self, layout: Layout) -> Crew:
        """Start the ranks of a layout and prepare its work."""
        arguments = self._arguments
        options: dict[str, Any] = {"requests": self._requests[: layout.branches]}
        if layout.who == PEAK:
            crew = edgedit_crew(self._model, layout.ranks, layout.threads)
            options = {"peak": str(self._peak), "rounds": PEAK_ROUNDS}
        elif layout.who == "edgedit":
            crew = edgedit_crew(self._model, layout.ranks, layout.threads, layout.axis)
            options |= {"dtype": arguments.dtype, "kernels": arguments.kernels}
            options |= {"compute": arguments.quantised_compute, "ahead": True}
        else:
            store = self._folder / f"store{layout.ranks}"
            crew = diffusers_crew(arguments.peer_python, self._model, store, layout.ranks, layout.threads)
            options |= {"dtype": arguments.peer_dtype}
        self._crews[layout] = crew
        self._prepared[layout] = crew.prepare(layout.name, options)
        crew.pin()
        say(f"{layout.name}: ready")
        return crew

    def run(self, rounds: int) -> None:
        layouts = {layout.name: layout for layout in self._crews}
        self._told = {layout: [] for layout in layouts.values()}
        for index in range(rounds):
            for name in in_turn(list(layouts), index):
                time.sleep(SETTLE_S)
                self._told[layouts[name]].append(self._crews[layouts[name]].run(name))
            say(f"round {index + 1} of {rounds}")

    @property
    def versions(self) -> dict[str, dict[str, str]]:
        return {layout.who: crew.versions for layout, crew in self._crews.items()}

    def seconds(self, layout: Layout) -> list[float]:
        return [answer["seconds"] for answer in self._told[layout]]

    def result(self, layout: Layout) -> np.ndarray:
        """The velocities of the last round, on rank 0."""
        path = self._folder / "velocities.npy"
        self._crews[layout].save(layout.name, path)
        velocities: np.ndarray = np.load(path)
        return velocities

    def row(self, layout: Layout) -> dict[str, Any]:
        """What is recorded of a layout; shares are those of a rank's time, one entry a rank."""
        seconds, answers = self.seconds(layout), self._told[layout]
        row: dict[str, Any] = {
            "median_ms": round(median(seconds) * 1e3, 2),
            "min_ms": round(min(seconds) * 1e3, 2),
            "median_processor_ms": round(statistics.median(a["processor_s"] for a in answers) * 1e3, 2),
        }
        if layout.who == "edgedit" and layout.ranks > 1:
            row["wait_share"] = _shares([answer["ranks"] for answer in answers], "wait_s")
            row["exchange_share"] = _shares([answer["ranks"] for answer in answers], "exchange_s")
        row["ms"] = milliseconds(seconds)
        kernels = self._prepared[layout].get("kernels")
        return row | ({"kernels": kernels} if kernels else {})


def _shares(rounds: Sequence[Sequence[Mapping[str, float]]], part: str) -> list[float]:
    """Median share of `part` in each rank's time."""
    of_ranks = zip(*rounds, strict=True)
    return [
        round(statistics.median(told[part] / (told["ended"] - told["began"]) for told in rank), 4)
        for rank in of_ranks
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=SIZES, default="mini")
    add("--rounds", type=int, default=7)
    add("--ranks", type=int, default=2, help="of --ulysses; --cfg has 2")
    add("--threads", type=int, default=1, help="of each rank")
    add("--dtype", default="f32", help="of edgedit's weights")
    add("--quantised-compute", default="exact")
    add("--kernels", default="auto")
    add("--no-diffusers", action="store_true")
    add("--peer-dtype", choices=("f32", "bf16"), default="f32", help="of diffusers")
    add("--peer-python", default=sys.executable, help="interpreter that has torch and diffusers")
    add("--output", type=Path, help="default: results/scaling-MODEL-DTYPE.json beside this file")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    shared = arguments.ranks, arguments.threads
    compared = [*groups(*shared, not arguments.no_diffusers), *([peaks(*shared)] if compiler_of_c() else [])]
    layouts = list(dict.fromkeys(layout for group in compared for layout in group))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scaling-")))
        fleet = Fleet(arguments, folder)
        for layout in layouts:
            stack.enter_context(fleet.start(layout))
        fleet.run(arguments.rounds)
        results = {layout: fleet.result(layout) for layout in layouts if layout.who != PEAK}
    rows = {layout.name: fleet.row(layout) for layout in layouts}
    for one, *others in compared:
        for layout in results.keys() & set(others):
            error = relative_error(results[layout], results[one])
            rows[layout.name]["error_to_one_thread"] = float(f"{error:.3g}")
    measured = {
        "model": arguments.model,
        **describe(arguments.model),
        "dtype": arguments.dtype,
        "peer_dtype": None if arguments.no_diffusers else arguments.peer_dtype,
        "ranks": arguments.ranks,
        "threads_per_rank": arguments.threads,
        "rounds": arguments.rounds,
        "launches": "persistent ranks, layouts in turn",
        "versions": fleet.versions,
        "measured": rows,
        "time_ratio": {
            f"{own.name} / {base.name}": time_ratio(fleet.seconds(own), fleet.seconds(base))
            for group in compared
            for own, base in [*comparisons(group), *peers(group, layouts)]
        },
    }
    save(f"scaling-{arguments.model}-{arguments.dtype}", measured, arguments.output)


if __name__ == "__main__":
    main()
