"""``edgedit plan``: what a layout would do, without weights and without MPI."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from edgedit import presets
from edgedit.commands import output, prediction
from edgedit.commands.image_arguments import add_planned_image_arguments
from edgedit.commands.layouts import add_auto_argument
from edgedit.commands.options import add_parallel_arguments
from edgedit.commands.plan_forecast import forecast_of
from edgedit.commands.request_arguments import add_request_arguments
from edgedit.commands.skip_layer_arguments import add_skip_layer_arguments
from edgedit.graph.forecast import as_json
from edgedit.graph.page import as_text
from edgedit.pipelines.parts import EMBEDDED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    known = ", ".join([EMBEDDED, *presets.names()])
    add("--model", default=EMBEDDED, metavar="MODEL",
        help=f"{known}, a diffusers directory, a transformer's config.json, or a safetensors or GGUF file with one "
        f"(default: {EMBEDDED})")  # fmt: skip
    add("--guidance-scale", type=float, metavar="X",
        help="Stable Diffusion 3: above 1, as by default, two guidance branches")  # fmt: skip
    add("--true-cfg-scale", type=float, metavar="X",
        help="FLUX: above 1, two guidance branches, as with a negative prompt")  # fmt: skip
    add("--rank", type=int, default=0, metavar="R", help="whose segments to show (default: %(default)s)")
    add("--ranks-detail", action="store_true", help="one line a rank, however many there are")
    add("--full", action="store_true", help="every step, instead of repeated blocks once")
    add("--plot", type=Path, metavar="FILE.svg", help="also draw the steps of the rank (needs matplotlib)")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add_auto_argument(parser, "instead of a plan, predict the time of all legal layouts, the fastest first")
    add("--ranks", type=int, metavar="N", help="with --auto: over N ranks (default: up to this host's cores)")
    add("--cluster", type=Path, metavar="FILE.toml",
        help="predict times on machines that are not there, of this layout or with --auto of all")  # fmt: skip
    add_request_arguments(parser)
    add_skip_layer_arguments(parser)
    add_planned_image_arguments(parser)
    add_parallel_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.auto or args.cluster is not None:
        return prediction.run(args)
    if args.ranks is not None:
        raise ValueError(f"--ranks {args.ranks} needs --auto")
    if args.plot is not None:
        if args.plot.suffix not in (".svg", ".png", ".pdf"):
            raise ValueError(f"--plot {str(args.plot)!r}: the name must end in .svg, .png or .pdf")
        output.check_writable([args.plot])
    forecast = forecast_of(args)
    if args.plot is not None:
        from edgedit.graph.picture import draw

        picture_format = args.plot.suffix.removeprefix(".")
        output.write_files({args.plot: lambda partial: draw(forecast, partial, picture_format)})
    if args.json:
        print(json.dumps(as_json(forecast)))
    else:
        print(as_text(forecast, full=args.full, every_rank=args.ranks_detail))
    return 0
