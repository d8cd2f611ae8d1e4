"""The model that ships with edgedit: a small FLUX-architecture pipeline that draws emoji, 64x64 pixels."""

import json
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def path() -> Path:
    """Directory of the embedded pipeline, in the layout that diffusers writes."""
    return _HERE / "pipeline"


def prompts() -> list[str]:
    """What the model was taught, each once: the names of things, then "<colour> <object>" pairs.

    44 of the 609 pairs were kept out of its training. Words around a name ("a photo of a fox") are
    understood; a thing that is not listed gives a blob or a blend of things that are.
    """
    taught = json.loads((_HERE / "prompts.json").read_text(encoding="utf-8"))
    pairs = [f"{color} {noun}" for noun in taught["objects"] for color in taught["colors"]]
    return list(dict.fromkeys(taught["names"] + pairs))
