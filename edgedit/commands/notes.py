"""What ``edgedit generate`` says beside its results, and which rank says it."""

from __future__ import annotations

import argparse
import re
import sys

from edgedit import embedded
from edgedit.pipelines.parts import EMBEDDED
from edgedit.pipelines.request import Limits, Request

_FILLERS = frozenset(["a", "an", "and", "in", "no", "of", "on", "out", "the", "up", "with"])


class Voice:
    """Text of world rank 0: results on stdout, notes on stderr."""

    def __init__(self, first: bool, quiet: bool, as_json: bool) -> None:
        self.notes = first and not quiet
        self.said: set[str] = set()
        self.results = self.notes and not as_json

    def note(self, text: str) -> None:
        if self.notes and text not in self.said:
            self.said.add(text)
            print(f"edgedit: {text}", file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        if self.results:
            print(text, flush=True)


def request_notes(args: argparse.Namespace, request: Request, limits: Limits) -> list[str]:
    """What the user may not expect of this request."""
    notes = []
    flag = "--guidance-scale" if limits.is_guided_by_branches else "--true-cfg-scale"
    if request.true_cfg_scale > 1 and request.negative_prompts is None:
        notes.append(f"{flag} {request.true_cfg_scale:g} has no effect without --negative-prompt")
    if request.guidance_rescale and request.negative_prompts is None:
        notes.append(f"--guidance-rescale {request.guidance_rescale:g} has no effect: the request is not guided")
    if request.true_cfg_scale <= 1 and args.negative_prompt is not None:
        notes.append(f"--negative-prompt has no effect unless {flag} is above 1")
    if args.model == EMBEDDED:
        known = {word for taught in embedded.prompts() for word in taught.split()} - _FILLERS
        for prompt in request.prompts:
            if known.isdisjoint(re.findall(r"[a-z0-9]+", prompt.lower())):
                notes.append(f"the embedded model was taught no word of {prompt!r}; see --list-prompts")
    return notes
