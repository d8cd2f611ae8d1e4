"""How n things are shared by P ranks: the rules of uneven splits and of guidance branches."""

from __future__ import annotations


def array_split(n: int, parts: int) -> list[int]:
    """Sizes of `parts` shares of `n`, larger ones first: the first n mod parts get one more."""
    base, extra = divmod(n, parts)
    return [base + (part < extra) for part in range(parts)]


def branches_of(place: int, count: int, ranks: int) -> list[int]:
    """Which of `count` guidance branches the rank at `place` of `ranks` runs, in turn: every so many. A rank beyond the
    branches repeats another's."""
    return list(range(place, count, ranks)) or [place % count]
