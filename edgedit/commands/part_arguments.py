"""Flags for the parts of a pipeline that stand in files of their own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from edgedit.pipelines.parts import EMBEDDED, PartFiles


def add_part_arguments(parser: argparse.ArgumentParser) -> None:
    """`--model` and the files of parts."""
    add = parser.add_argument
    add("--model", metavar="PATH",
        help="a directory in diffusers layout, or a safetensors or GGUF file (default: the embedded model, unless its "
        "parts are given)")  # fmt: skip
    group = parser.add_argument_group(
        "parts of the model in files of their own",
        "safetensors or GGUF, as published, in place of those of --model or without it",
    )
    for part, what in (
        ("transformer", "the denoising network"),
        ("vae", "the autoencoder"),
        ("clip-l", "the smaller CLIP text encoder"),
        ("clip-g", "the larger CLIP text encoder, of Stable Diffusion 3"),
        ("t5", "the T5 text encoder"),
    ):
        group.add_argument(f"--{part}", type=Path, metavar="FILE", help=what)
    group.add_argument(
        "--tokenizer-dir",
        type=Path,
        metavar="DIR",
        help="holds tokenizer, tokenizer_2 and maybe tokenizer_3: files of weights have none",
    )


def part_files(args: argparse.Namespace) -> PartFiles:
    """The files that were given."""
    return PartFiles(args.transformer, args.vae, args.clip_l, args.clip_g, args.t5, args.tokenizer_dir)


def model_of(args: argparse.Namespace) -> str | None:
    """The model that was given, or is meant where nothing is; None where its parts are all there is."""
    return EMBEDDED if args.model is None and not part_files(args) else args.model


def part_parameters(args: argparse.Namespace) -> dict[str, Any]:
    """What of it is needed to draw a picture again."""
    files = part_files(args)
    given = {**files.networks(), "tokenizer_dir": files.tokenizer_dir}
    return {name: str(path) for name, path in given.items() if path is not None}
