"""How much is measured: enough to tell layouts apart, or little, to try it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Sizes of what is timed.

    heads        of the network whose nodes are timed, with 128 channels each
    sides        image tokens along each side of a square
    text_tokens  beside each of those images
    repeats      of everything, in turns; the median counts
    nbytes       that a rank sends in the collectives that are timed
    """

    heads: int
    sides: tuple[int, ...]
    text_tokens: tuple[int, ...]
    repeats: int
    nbytes: tuple[int, ...]


FULL = Effort(8, (8, 16, 32), (16, 64, 128), 9, (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 24))
QUICK = Effort(2, (4, 8), (8, 16), 2, (1 << 10, 1 << 16))
EFFORTS = {"full": FULL, "quick": QUICK}
