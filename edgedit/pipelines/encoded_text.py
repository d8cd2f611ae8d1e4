"""What the text encoders make of prompts, and how it reaches ranks that have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgedit.parallel.buffer import Buffer

if TYPE_CHECKING:
    from edgedit.parallel.context import ParallelContext


@dataclass(frozen=True)
class Text:
    """Encoded prompts: sequence [B, T, C], pooled [B, P]."""

    sequence: np.ndarray
    pooled: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[Text]) -> Text:
        """Several as one batch."""
        return cls(np.concatenate([t.sequence for t in texts]), np.concatenate([t.pooled for t in texts]))


def broadcast_texts(
    context: ParallelContext, texts: Mapping[str, Text], prompts: Sequence[str]
) -> dict[str, Text]:
    """The `texts` of world rank 0, f32, on every rank; all ranks pass the same prompts."""
    world = context.group("world")
    shapes = (
        [[texts[p].sequence.shape, texts[p].pooled.shape] for p in prompts] if context.rank == 0 else None
    )
    shapes = context.broadcast_object(shapes)
    received = {}
    for prompt, (sequence, pooled) in zip(prompts, shapes, strict=True):
        if context.rank == 0:
            text = Text(
                *(np.ascontiguousarray(x, np.float32) for x in (texts[prompt].sequence, texts[prompt].pooled))
            )
        else:
            text = Text(np.empty(sequence, np.float32), np.empty(pooled, np.float32))
        for name in ("sequence", "pooled"):
            world.broadcast(Buffer.of(getattr(text, name)), label=f"{name} of encoded text")
        received[prompt] = text
    return received
