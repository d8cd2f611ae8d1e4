"""The command line: ``edgedit COMMAND ...``. A command's module is imported when it is called, not before."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import edgedit
from edgedit import launcher
from edgedit.commands.flag_names import in_flags
from edgedit.errors import EdgeditError

COMMANDS = {
    "generate": "draw pictures from prompts",
    "bench": "time the transformer's steps, on one rank or under mpirun",
    "plan": "show ranks, groups, segments, bytes and memory of a layout, without weights or MPI",
    "tune": "measure this host once, for plan --auto and generate --auto to choose layouts by",
    "verify": "compare a layout with one rank, step by step and block by block, under mpirun",
    "convert": "write a network as a GGUF file, quantised",
    "inspect": "show what is in a model directory, a file of weights or a LoRA, and what is missing or damaged",
    "doctor": "show what this installation and this host offer",
}
BAD_INPUT, FAILURE, INTERRUPTED = 2, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, 1 for a failure, 2 for bad input."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = _parser(words).parse_args(words)
    try:
        return args.run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    except (EdgeditError, OSError) as error:
        _print_error(str(error), everywhere=True)
        return FAILURE
    except ValueError as error:
        _print_error(in_flags(str(error), args), everywhere=False)
        return BAD_INPUT


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _print_error(f"{message}; see {self.prog} --help", everywhere=False)
        raise SystemExit(BAD_INPUT)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="edgedit",
        description="Diffusion transformers on ggml, over one process or many. "
        "Over several: mpirun -n 4 edgedit generate ... --ulysses 4",
    )
    parser.add_argument("--version", action="version", version=f"edgedit {edgedit.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    chosen = next((word for word in words if word in COMMANDS), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name == chosen:
            module = importlib.import_module(f"edgedit.commands.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _print_error(message: str, everywhere: bool) -> None:
    """To stderr. Bad input is the same on every rank: the first one of each host says it once."""
    try:
        launch = launcher.detect(os.environ)
    except ValueError:
        launch = launcher.Launch("none")
    place = f"[rank {launch.rank}/{launch.world_size}] "
    if everywhere and launch.world_size > 1 and not message.startswith(place):
        message = place + message
    if everywhere or launch.local_rank == 0:
        print(f"edgedit: error: {message}", file=sys.stderr, flush=True)
