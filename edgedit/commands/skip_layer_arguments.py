"""Guidance away from a model without some of its layers, on the command line."""

from __future__ import annotations

import argparse
from typing import Any

from edgedit.pipelines.request import SkipLayerGuidance

_NAMES = ("scale", "start", "stop")


def add_skip_layer_arguments(parser: argparse.ArgumentParser) -> None:
    """The layers, and how strongly and when the guidance acts."""
    add = parser.add_argument
    add("--skip-guidance-layers", type=int, nargs="+", metavar="N",
        help="Stable Diffusion 3: guide away from the model without these layers, such as 7 8 9")  # fmt: skip
    whats = (
        "strength of that guidance",
        "where it begins, as a fraction of the steps",
        "where it ends, as a fraction of the steps",
    )
    for name, what in zip(_NAMES, whats, strict=True):
        add(f"--skip-layer-guidance-{name}", type=float, default=getattr(SkipLayerGuidance, name), metavar="X",
            help=f"{what} (default: %(default)s)")  # fmt: skip


def skip_layer_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of a request."""
    numbers = {f"skip_layer_guidance_{name}": getattr(args, f"skip_layer_guidance_{name}") for name in _NAMES}
    return {"skip_guidance_layers": args.skip_guidance_layers, **numbers}


def skip_layer_parameters(guidance: SkipLayerGuidance | None) -> dict[str, Any]:
    """What is needed to draw a picture again."""
    if guidance is None:
        return {}
    numbers = {f"skip_layer_guidance_{name}": getattr(guidance, name) for name in _NAMES}
    return {"skip_guidance_layers": " ".join(map(str, guidance.layers)), **numbers}
