"""One step of a FLUX transformer: edgedit, the same graph on stock ggml, and diffusers.

    python benchmarks/denoise.py [--model mini] [--rounds 7] [--contenders edgedit:bf16,diffusers:bf16] [--compile]

All contenders read the same random weights and inputs and take turns, round by round, on the same cores. edgedit and
PyTorch bring an OpenMP runtime each, so each has a process of its own; only one of them computes at a time.
A contender is `who:dtype`, or `edgedit:dtype:int8` for products in integers:

edgedit     kernels of --kernels                    diffusers   eager PyTorch
ggml        the same graph on stock ggml            compiled    torch.compile with freezing (--compile adds it)

What is slower than --slow-s seconds a step runs in --slow-rounds of the rounds. PyTorch may be that of another
interpreter, --peer-python.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from contenders import COMPILED, DEFAULT, PEAK, crew_of, options_of
from crew import Crew
from crews import diffusers_crew, edgedit_crew
from measurement import step_flops
from model_directory import describe, write_model, write_requests
from peak import ROUNDS, compile_peak
from race import Race, complaints
from record import save

from edgedit.models.random_flux import SIZES


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", choices=SIZES, default="mini")
    add("--rounds", type=int, default=7)
    add("--threads", type=int, default=1)
    add("--kernels", default="auto", help="of the contenders called edgedit")
    add("--contenders", type=lambda text: text.split(","), default=DEFAULT, help="separated by commas")
    add("--compile", action="store_true", help="also torch.compile, which needs a C++ compiler")
    add("--compile-s", type=float, default=300, help="give up compiling after so many seconds")
    add("--slow-s", type=float, default=10)
    add("--slow-rounds", type=int, default=2)
    add("--peer-python", default=sys.executable, help="interpreter that has torch and diffusers")
    add("--output", type=Path, help="default: results/denoise-MODEL.json beside this file")
    arguments = parser.parse_args()
    if arguments.compile:
        arguments.contenders = [*arguments.contenders, *COMPILED]
    return arguments


def measure(arguments: argparse.Namespace, folder: Path, stack: contextlib.ExitStack) -> dict[str, Any]:
    (request,) = write_requests(folder, arguments.model, 1)
    options = {name: options_of(name, arguments.kernels, request) for name in arguments.contenders}
    model = write_model(folder, arguments.model)

    def start(who: str) -> Crew:
        if who == "edgedit":
            return edgedit_crew(model, threads=arguments.threads)
        return diffusers_crew(arguments.peer_python, model, folder / "store", threads=arguments.threads)

    needed = dict.fromkeys(["edgedit", *map(crew_of, options)])  # edgedit's also runs the loop at the peak
    crews = {who: stack.enter_context(start(who)) for who in needed}
    race = Race(crews)
    for name, of_contender in options.items():
        race.prepare(name, of_contender, arguments.compile_s if name in COMPILED else 600)
    library = compile_peak(folder)
    if library is not None:
        race.prepare(PEAK, {"peak": str(library), "rounds": ROUNDS})
    for crew in crews.values():
        crew.pin()
    race.run(arguments.rounds, arguments.slow_s, arguments.slow_rounds)
    config = SIZES[arguments.model].config
    flops = step_flops(
        config.dim, config.num_layers + config.num_single_layers, SIZES[arguments.model].tokens
    )
    return {
        "model": arguments.model,
        **describe(arguments.model),
        "gflop": round(flops / 1e9, 1),
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "slow_s": arguments.slow_s,
        "slow_rounds": arguments.slow_rounds,
        "versions": {who: crew.versions for who, crew in crews.items()},
        "failed": race.failed,
        "peak_gflop_per_s": race.peak(),
        "measured": race.rows(flops, folder),
    }


def main() -> None:
    arguments = parse()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="denoise-")))
        measured = measure(arguments, folder, stack)
    save(f"denoise-{arguments.model}", measured, arguments.output)
    if lines := complaints(measured["failed"], measured["measured"]):
        raise SystemExit("\n".join(lines))


if __name__ == "__main__":
    main()
