"""``edgedit generate``: draw pictures from prompts, on one rank or under mpirun."""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit import embedded
from edgedit.commands import auto_layout, output
from edgedit.commands.image_arguments import add_image_arguments, image_options, image_parameters
from edgedit.commands.layout_facts import layout_facts
from edgedit.commands.layouts import add_auto_argument
from edgedit.commands.notes import Voice, request_notes
from edgedit.commands.options import (
    add_host_arguments,
    add_parallel_arguments,
    bind_rank,
    parallel_options,
)
from edgedit.commands.part_arguments import add_part_arguments, model_of, part_files, part_parameters
from edgedit.commands.profiling import Finished, add_profile_argument, check_profile, finish
from edgedit.commands.request_arguments import add_request_arguments, request_options
from edgedit.commands.skip_layer_arguments import (
    add_skip_layer_arguments,
    skip_layer_parameters,
)
from edgedit.config import ParallelConfig
from edgedit.pipelines.branches import check_lockstep
from edgedit.pipelines.image_inputs import image_notes
from edgedit.pipelines.loras import Loras, parse_lora
from edgedit.pipelines.request import Request
from edgedit.pipelines.settings import read_settings
from edgedit.weights.lora_config import MODES

if TYPE_CHECKING:
    from edgedit.parallel.context import ParallelContext
    from edgedit.pipelines.pipeline import Pipeline, Result

VAE_TILE_PX = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-p", "--prompt", action="append", metavar="TEXT", help="what to draw; again for another picture")
    add("--prompts-file", type=Path, metavar="FILE",
        help="more prompts, one a line (UTF-8; empty lines are left out), after those of -p")  # fmt: skip
    add(
        "--negative-prompt",
        action="append",
        metavar="TEXT",
        help="what not to draw; one for all or one a prompt",
    )
    add("--lora", action="append", default=[], type=parse_lora, metavar="FILE[:WEIGHT]",
        help="LoRA to add, times a weight (default: 1); again for another one")  # fmt: skip
    add("--lora-mode", default="merge", choices=MODES,
        help="merge: into the weights; apart: beside them, in f32 (default: %(default)s)")  # fmt: skip
    add("-s", "--seed", type=int, metavar="N", help="seed of the noise (default: drawn and printed)")
    add("--guidance-scale", type=float, metavar="X",
        help="FLUX: guidance input of distilled models (default: 3.5, FLUX.1-Fill: 30); Stable Diffusion 3: "
        "classifier-free guidance above 1 (default: 7)")  # fmt: skip
    add("--true-cfg-scale", type=float, metavar="X",
        help="FLUX: above 1 and with a negative prompt, classifier-free guidance")  # fmt: skip
    add("--batch-size", type=int, metavar="N",
        help="most pictures that a replica (--dp) denoises at once (default: all of its share)")  # fmt: skip
    add("--guidance-rescale", type=float, default=0.0, metavar="X",
        help="0 to 1: bring guided predictions to the contrast of conditional ones (default: %(default)g)")  # fmt: skip
    add("--vae-tiling", type=int, nargs="?", const=VAE_TILE_PX, metavar="PX",
        help=f"decode in tiles of PX pixels ({VAE_TILE_PX} unless given): less memory, more time")  # fmt: skip
    add("-o", "--output", type=Path, default=Path("edgedit.png"), metavar="FILE",
        help="picture file; several pictures become FILE-0, FILE-1, ... (default: %(default)s)")  # fmt: skip
    add("--latents-out", type=Path, metavar="FILE.npy", help="also save the final latents [B, C, h, w]")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add("--quiet", action="store_true", help="print nothing but errors (and the JSON object)")
    add("--list-prompts", action="store_true", help="show what the embedded model was taught, and stop")
    add_part_arguments(parser)
    add_request_arguments(parser, as_stored=True)
    add_skip_layer_arguments(parser)
    add_image_arguments(parser)
    add_host_arguments(parser)
    add_parallel_arguments(parser)
    add_auto_argument(parser, "choose the layout of the launched ranks by what edgedit tune has measured")
    add_profile_argument(parser)


def run(args: argparse.Namespace) -> int:
    if args.list_prompts:
        print("\n".join(embedded.prompts()))
        return 0
    prompts = [*(args.prompt or ()), *(_prompts_of(args.prompts_file) if args.prompts_file else ())]
    if not prompts:
        raise ValueError("no prompt; give one with -p TEXT or --prompts-file FILE")

    args.model = model_of(args)
    settings = read_settings(args.model, part_files(args))
    args.weights_as = args.dtype
    Loras.of(args.lora, args.lora_mode)
    image = image_options(args)
    image.check(settings.limits, args.steps)
    request = settings.request(
        prompts,
        args.negative_prompt,
        seed=args.seed,
        batch_size=args.batch_size,
        guidance_rescale=args.guidance_rescale,
        vae_tile=args.vae_tiling,
        **request_options(args),
    )
    pictures = output.picture_paths(args.output, request.batch)
    if args.latents_out is not None and args.latents_out.suffix != ".npy":
        raise ValueError(f"--latents-out {str(args.latents_out)!r}: the name must end in .npy")
    notes = []
    if args.auto:
        args.dtype = settings.main_dtype(args.weights_as)
        notes = auto_layout.choose(args, request, image, settings.limits)
    options, chosen = parallel_options(args, settings.num_heads)
    config = ParallelConfig.from_env(**options)
    settings.check_parallel(config)
    check_lockstep(config, request)
    check_profile(args.profile, config)
    bind_rank(args, config)
    args.dtype = settings.main_dtype(args.weights_as)
    notes += [chosen] if chosen else []
    notes += request_notes(args, request, settings.limits)

    from edgedit.parallel.context import ParallelContext

    with ParallelContext(config) as context:
        paths = [*pictures, *(path for path in (args.latents_out, args.profile) if path is not None)]
        problem = output.problem_with(context, paths)
        if problem is None:
            request, problem = image.added_to(request, settings.limits, context)
        if problem is None:
            _draw(args, context, request, pictures, [*notes, *image_notes(request.image)])
    if problem is not None:
        raise ValueError(problem)
    return 0


def _prompts_of(path: Path) -> list[str]:
    """The prompts in a file. ValueError for a file that cannot be read or holds none."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--prompts-file {str(path)!r} cannot be read: {error}") from None
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise ValueError(f"--prompts-file {str(path)!r} holds no prompt; write one a line")
    return prompts


def _draw(
    args: argparse.Namespace,
    context: ParallelContext,
    request: Request,
    pictures: list[Path],
    notes: list[str],
) -> None:
    """Load, draw, write and report: on every rank, the last two on world rank 0."""
    from edgedit.parallel.timeline import Timeline
    from edgedit.pipelines.pipeline import Pipeline

    voice = Voice(context.rank == 0, args.quiet, args.json)
    timeline = context.timeline = Timeline() if args.profile else None
    for note in notes:
        voice.note(note)
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: voice.note(str(message))
        pipeline = Pipeline.from_pretrained(
            args.model,
            args.weights_as,
            args.threads,
            context,
            progress=not args.quiet,
            quantised_compute=args.quantised_compute,
            loras=args.lora,
            lora_mode=args.lora_mode,
            parts=part_files(args),
        )
        pipeline.profile(timeline)
        result = pipeline.run(request)
    for note in result.notes:
        voice.note(note)
    profile = finish(timeline, context) if timeline else None
    context.note(phase="writing")
    if context.rank == 0:
        _write(args, request, result, pictures, profile)
        voice.say(f"seed {result.seed}")
        for path in pictures:
            voice.say(str(path))
        if profile is not None:
            voice.say(f"{args.profile}\n\n{profile.table()}")
        if args.json:
            print(json.dumps(_report(args, pipeline, result, pictures)))
    # the others stay until the pictures are written: a failure there ends them too
    context.group("world").barrier()


def _write(
    args: argparse.Namespace,
    request: Request,
    result: Result,
    pictures: list[Path],
    profile: Finished | None,
) -> None:
    assert result.images is not None, "world rank 0 holds the pictures"
    writers = {}
    for index, (path, image) in enumerate(zip(pictures, result.images, strict=True)):
        parameters = _parameters(args, request, result.seed, index)
        writers[path] = output.picture_writer(image, path, parameters)
    if args.latents_out is not None:
        writers[args.latents_out] = output.array_writer(result.latents)
    if profile is not None:
        writers[args.profile] = profile.writer(_parameters(args, request, result.seed, 0))
    output.write_files(writers)


def _parameters(args: argparse.Namespace, request: Request, seed: int, index: int) -> dict[str, Any]:
    """What is needed to draw picture ``index`` again."""
    prompt = index // request.num_images_per_prompt
    return {
        "prompt": request.prompts[prompt],
        "negative_prompt": request.negative_prompts[prompt] if request.negative_prompts else None,
        "steps": request.num_inference_steps,
        "seed": seed,
        "picture": f"{index + 1} of {request.batch}",
        "size": f"{request.width}x{request.height}",
        "guidance_scale": request.guidance_scale,
        "true_cfg_scale": request.true_cfg_scale,
        **({"guidance_rescale": request.guidance_rescale} if request.guidance_rescale else {}),
        **skip_layer_parameters(request.skip_layer_guidance),
        **image_parameters(args, request),
        "max_sequence_length": request.max_sequence_length,
        "model": args.model,
        **part_parameters(args),
        "dtype": args.weights_as,
        "quantised_compute": args.quantised_compute,
        **({"loras": " ".join(Loras(args.lora).names), "lora_mode": args.lora_mode} if args.lora else {}),
    }


def _report(
    args: argparse.Namespace, pipeline: Pipeline, result: Result, pictures: list[Path]
) -> dict[str, Any]:
    config = pipeline.context.config
    return {
        "seed": result.seed,
        **layout_facts(config),
        "dtype": args.dtype,
        "wire_dtype": config.wire_dtype_for(args.dtype),
        "quantised_compute": args.quantised_compute,
        "schedule_digest": result.schedule_digest,
        "bytes_sent": result.bytes_sent,
        "timings": {name: round(seconds, 6) for name, seconds in result.timings.items()},
        "outputs": [str(path) for path in pictures],
    }
