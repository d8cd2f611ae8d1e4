"""The picture that ``edgedit generate`` begins with, on the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from edgedit.pipelines.image_inputs import REFERENCE, START
from edgedit.pipelines.image_options import ImageOptions

if TYPE_CHECKING:
    from edgedit.pipelines.request import Request


def add_image_arguments(parser: argparse.ArgumentParser) -> None:
    """What becomes of a picture."""
    group = parser.add_argument_group("beginning with a picture")
    add = group.add_argument
    add("--image", metavar="FILE",
        help="redraw this picture, stretched to the size drawn; FLUX.1-Kontext reads it as a reference")  # fmt: skip
    add("--mask", metavar="FILE",
        help="of the image's size: white is painted anew, black stays as it is; FLUX.1-Fill needs one")  # fmt: skip
    add_strength_argument(group)
    add_reference_arguments(group)


def add_reference_arguments(parser: Any) -> None:
    """Whether the picture is a reference, and its size, which decide the work too."""
    parser.add_argument("--image-as", choices=(START, REFERENCE), metavar="HOW",
        help="FLUX: start, to denoise it, or reference, to read it (default: the model's way)")  # fmt: skip
    parser.add_argument("--keep-image-size", action="store_true",
        help="FLUX.1-Kontext: read the image at its own size, not at the nearest trained one")  # fmt: skip


def add_strength_argument(parser: Any) -> None:
    """How many of the steps run, which decides the work."""
    parser.add_argument("--strength", type=float, metavar="X",
        help="fraction of the steps that run, above 0 and at most 1: how much noise covers the image first "
        "(default: 0.6, FLUX.1-Fill: 1)")  # fmt: skip


def add_planned_image_arguments(parser: argparse.ArgumentParser) -> None:
    """The same where there is no picture yet."""
    group = parser.add_argument_group("beginning with a picture")
    group.add_argument("--image-size", metavar="WxH",
        help="width and height, in pixels, of the picture that generate would begin with")  # fmt: skip
    add_strength_argument(group)
    add_reference_arguments(group)


def image_size(args: argparse.Namespace) -> tuple[int, int] | None:
    """Width and height of --image-size. ValueError for what is no size."""
    if args.image_size is None:
        return None
    words = args.image_size.split("x")
    if len(words) != 2 or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(
            f"--image-size {args.image_size!r}: write width x height in pixels, such as 1024x768"
        )
    return int(words[0]), int(words[1])


def image_options(args: argparse.Namespace) -> ImageOptions:
    """The options of a command line, unchecked."""
    return ImageOptions(args.image, args.mask, args.strength, not args.keep_image_size, args.image_as)


def image_parameters(args: argparse.Namespace, request: Request) -> dict[str, Any]:
    """What is needed to draw a picture again, of the one that it began with."""
    if request.image is None:
        return {}
    return {
        "image": args.image,
        **({} if args.mask is None else {"mask": args.mask}),
        "image_as": request.image.use,
        "strength": request.image.strength,
        "image_size": "{1}x{0}".format(*request.image.size),
    }
