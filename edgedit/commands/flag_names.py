"""Messages about an argument of the Python interface, told on the command line about the option behind it."""

from __future__ import annotations

import argparse
import re

# Arguments of Python that are called otherwise here.
_FLAGS = {
    "num_inference_steps": "--steps",
    "num_images_per_prompt": "--num-images",
    "vae_tile": "--vae-tiling",
    "vae_degree": "--vae-ranks",
    "text_encoder_degree": "--text-encoder-ranks",
    "timeout_s": "--timeout",
}
_SUBJECT = re.compile(r"(\w+_\w+) is ")


def in_flags(message: str, args: argparse.Namespace) -> str:
    """A message that begins with `NAME is`, about the option that NAME stands for; any other one as it is."""
    found = _SUBJECT.match(message)
    if found is None:
        return message
    name = found[1]
    option = name.removesuffix("_degree")
    flag = f"--{option.replace('_', '-')}" if option in vars(args) else name
    return _FLAGS.get(name, flag) + message[len(name) :]
