"""The part of a request that several commands take."""

from __future__ import annotations

import argparse
from typing import Any

from edgedit import kernels
from edgedit.commands.skip_layer_arguments import skip_layer_options

DTYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k")


def add_request_arguments(parser: argparse.ArgumentParser, as_stored: bool = False) -> None:
    """The part of a request that decides the shapes, and the type of the weights, by default `as_stored` or f32."""
    add = parser.add_argument
    add("--steps", type=int, default=28, metavar="N",
        help="denoising steps (default: %(default)s; schnell and turbo models want 4)")  # fmt: skip
    add("--width", type=int, metavar="PX", help="default: the model's own size")
    add("--height", type=int, metavar="PX", help="default: the model's own size")
    add("--num-images", type=int, default=1, metavar="N", help="pictures per prompt")
    add("--max-sequence-length", type=int, metavar="N", help="text tokens (default: the tokenizer's limit)")
    if as_stored:
        add("--dtype", default="auto", choices=("auto", *DTYPES),
            help="type of the large weights; auto: as stored in GGUF, else f32 (default: %(default)s)")  # fmt: skip
    else:
        add("--dtype", default="f32", choices=DTYPES, help="type of the large weights (default: %(default)s)")
    add("--quantised-compute", default="exact", choices=kernels.QUANTISED_COMPUTE,
        help="int8: multiply quantised weights as integers, rounding activations (default: %(default)s)")  # fmt: skip


def request_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of a request: shapes, steps and guidance."""
    return {
        "num_inference_steps": args.steps,
        "guidance_scale": args.guidance_scale,
        "true_cfg_scale": args.true_cfg_scale,
        "height": args.height,
        "width": args.width,
        "num_images_per_prompt": args.num_images,
        "max_sequence_length": args.max_sequence_length,
        **skip_layer_options(args),
    }
