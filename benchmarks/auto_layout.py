"""Whether the layout that edgedit chooses is the one that measures fastest: predictions against times, case by case.

    python benchmarks/auto_layout.py [--rounds 7] [--repeats 3] [--quick]

Measures this host as `edgedit tune` does, alone and for every number of ranks; lets the cost model choose, for each
case, among all legal layouts of its ranks and one rank with all threads; then times all of them, in turns. Where two
layouts differ by less than one of them does between rounds, which one has the lower median is chance: so it is also
told which layouts were faster than the chosen one in every round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from auto_layout_cases import CASES, QUICK, Case
from crews import mpiexec
from record import save

from edgedit import kernels
from edgedit.config import AXES
from edgedit.tuning.cache import Measurements
from edgedit.tuning.search import CostModel, Prediction, by_preference

_RANK = Path(__file__).with_name("auto_layout_rank.py")
# A choice this much slower than the fastest layout is as good: two runs of one layout differ as much.
NEAR = 1.03


def tune(cases: Sequence[Case], effort: str, folder: str) -> None:
    """Measure this host for the ranks and types of the cases; keep it in a cache of its own."""
    dtypes = sorted({case.dtype for case in cases})
    for ranks in sorted({1, *(case.ranks for case in cases)}):
        words = [sys.executable, "-m", "edgedit", "tune", "--effort", effort, "--dtype", *dtypes]
        _run(ranks, words, {"XDG_CACHE_HOME": folder})


def predictions(case: Case, measured: Measurements) -> list[Prediction]:
    """Of every layout of the case's ranks, and of one rank; the one that is chosen first."""
    return by_preference(
        prediction
        for ranks in (case.ranks, 1)
        for prediction in CostModel(case.work, measured.machine_for(ranks)).ranked(ranks)
    )


def measured_s(
    case: Case, layouts: Sequence[Prediction], rounds: int, repeats: int
) -> dict[str, list[float]]:
    """Seconds of a step by the layout's flags, the median of each round; odd rounds go backwards."""
    times: dict[str, list[float]] = {layout.flags: [] for layout in layouts}
    for turn in range(rounds):
        ordered = list(reversed(layouts)) if turn % 2 else list(layouts)
        for ranks in (1, case.ranks) if turn % 2 else (case.ranks, 1):
            some = [layout for layout in ordered if layout.world_size == ranks]
            words = [sys.executable, str(_RANK), case.name, json.dumps([dict(p.degrees) for p in some])]
            told = _run(ranks, [*words, "--repeats", str(repeats)])
            for layout, seconds in zip(some, json.loads(told.splitlines()[-1]), strict=True):
                times[layout.flags].append(statistics.median(seconds))
    return times


def row_of(case: Case, found: Sequence[Prediction], rounds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """What was chosen, what was fastest, and what was faster than the choice in every round; in milliseconds."""
    seconds = {flags: statistics.median(of_rounds) for flags, of_rounds in rounds.items()}
    chosen, fastest = found[0].flags, min(seconds, key=lambda flags: seconds[flags])
    beaten_by = [
        flags
        for flags, of_rounds in rounds.items()
        if all(other < own for other, own in zip(of_rounds, rounds[chosen], strict=True))
    ]
    return {
        "case": case.name,
        "ranks": case.ranks,
        "chosen": chosen,
        "fastest": fastest,
        "is_fastest": chosen == fastest,
        "beaten_by": beaten_by,
        "is_near": seconds[chosen] <= NEAR * seconds[fastest],
        "predicted_ms": {p.flags: round(1e3 * p.step.total, 2) for p in found},
        "measured_ms": {p.flags: round(1e3 * seconds[p.flags], 2) for p in found},
        "rounds_ms": {p.flags: [round(1e3 * s, 2) for s in rounds[p.flags]] for p in found},
    }


def _run(ranks: int, words: Iterable[str], env: dict[str, str] | None = None) -> str:
    launched = [*(mpiexec(ranks) if ranks > 1 else []), *words]
    done = subprocess.run(launched, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(launched)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="how often each layout takes its turn")
    parser.add_argument("--repeats", type=int, default=3, help="steps of a turn")
    parser.add_argument("--quick", action="store_true", help="tiny cases, to try the script; keeps no record")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="of the cases only these; keeps no record")
    arguments = parser.parse_args()
    cases = [
        case for case in (QUICK if arguments.quick else CASES) if case.name in (arguments.only or [case.name])
    ]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        tune(cases, "quick" if arguments.quick else "full", folder)
        measured = Measurements(kernels.chosen("auto"), Path(folder) / "edgedit")
        for case in cases:
            found = predictions(case, measured)
            rows.append(row_of(case, found, measured_s(case, found, arguments.rounds, arguments.repeats)))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    result = {
        "axes": list(AXES),
        "near": NEAR,
        "cases": len(rows),
        "chosen_is_fastest": sum(row["is_fastest"] for row in rows),
        "chosen_is_unbeaten": sum(not row["beaten_by"] for row in rows),
        "chosen_is_near": sum(row["is_near"] for row in rows),
        "rows": rows,
    }
    if arguments.quick or arguments.only:
        print(json.dumps(result, indent=1))
    else:
        save("auto-layout", result)


if __name__ == "__main__":
    main()
