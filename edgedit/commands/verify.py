"""``edgedit verify``: under mpirun, this layout against one rank, step by step and block by block."""

from __future__ import annotations

import argparse
import json
import warnings
from typing import TYPE_CHECKING, Any

from edgedit.commands import verify_report
from edgedit.commands.image_arguments import add_image_arguments, image_options
from edgedit.commands.options import (
    add_host_arguments,
    add_parallel_arguments,
    bind_rank,
    parallel_options,
)
from edgedit.commands.part_arguments import add_part_arguments, model_of, part_files
from edgedit.commands.request_arguments import add_request_arguments, request_options
from edgedit.commands.skip_layer_arguments import add_skip_layer_arguments
from edgedit.config import ParallelConfig
from edgedit.pipelines.branches import check_lockstep
from edgedit.pipelines.settings import read_settings

if TYPE_CHECKING:
    from edgedit.parallel.context import ParallelContext
    from edgedit.pipelines.request import Request

_STEPS, _PROMPT = 4, "a red apple"
_PASSED, _FAILED = 0, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_part_arguments(parser)
    add(
        "-p",
        "--prompt",
        action="append",
        metavar="TEXT",
        help=f"again for another picture (default: {_PROMPT})",
    )
    add("--negative-prompt", action="append", metavar="TEXT", help="for a second guidance branch of FLUX")
    add("--guidance-scale", type=float, metavar="X", help="as in generate")
    add("--true-cfg-scale", type=float, metavar="X", help="as in generate")
    add("-s", "--seed", type=int, default=0, metavar="N", help="seed of the noise (default: %(default)s)")
    add("--block-step", type=int, default=1, metavar="N",
        help="the step whose blocks are compared; the first has equal inputs (default: %(default)s)")  # fmt: skip
    add("--tolerance", type=float, metavar="X",
        help="largest relative difference of latents and blocks (default: 1e-4, more where types round)")  # fmt: skip
    add("--json", action="store_true", help="print one JSON object instead of text")
    add_request_arguments(parser, as_stored=True)
    add_skip_layer_arguments(parser)
    add_image_arguments(parser)
    add_host_arguments(parser)
    add_parallel_arguments(parser)
    parser.set_defaults(steps=_STEPS)


def run(args: argparse.Namespace) -> int:
    args.model = model_of(args)
    settings = read_settings(args.model, part_files(args))
    args.weights_as, args.dtype = args.dtype, settings.main_dtype(args.dtype)
    options, chosen = parallel_options(args, settings.num_heads)
    config = ParallelConfig.from_env(**options)
    settings.check_parallel(config)
    image = image_options(args)
    num_steps = image.num_steps(settings.limits, args.steps)
    request = settings.request(
        args.prompt or [_PROMPT],
        args.negative_prompt,
        seed=args.seed,
        **request_options(args),
    )
    if config.world_size == 1:
        raise ValueError("verify compares several ranks with one: mpirun -n 2 edgedit verify --ulysses 2 ...")
    if not 1 <= args.block_step <= num_steps:
        raise ValueError(f"--block-step is {args.block_step}; legal: 1 to {num_steps}")
    if args.tolerance is not None and not args.tolerance >= 0:
        raise ValueError(f"--tolerance is {args.tolerance}; at least 0 is needed")
    check_lockstep(config, request)
    bind_rank(args, config)

    from edgedit.parallel.context import ParallelContext

    with ParallelContext(config) as context:
        request, problem = image.added_to(request, settings.limits, context)
        if problem is None:
            return _verify(args, context, request, [*([chosen] if chosen else [])])
    raise ValueError(problem)


def _verify(args: argparse.Namespace, context: ParallelContext, request: Request, notes: list[str]) -> int:
    from edgedit.commands.verification import Verification
    from edgedit.pipelines.pipeline import Pipeline

    def open_pipeline(of: ParallelContext) -> Any:
        return Pipeline.from_pretrained(
            args.model,
            args.weights_as,
            args.threads,
            of,
            quantised_compute=args.quantised_compute,
            parts=part_files(args),
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of prompts that are cut, which changes no comparison
        findings = Verification(context, open_pipeline, request, args.block_step - 1).run()
    status = None
    if findings is not None:
        report = verify_report.report(args, context.config, findings, [*notes, *findings.notes])
        print(json.dumps(report) if args.json else verify_report.as_text(report), flush=True)
        status = _PASSED if report["passed"] else _FAILED
    return int(context.broadcast_object(status))
