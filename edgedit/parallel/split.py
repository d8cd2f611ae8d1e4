"""How n things are shared by P ranks: the rule of every uneven split."""

from __future__ import annotations


def array_split(n: int, parts: int) -> list[int]:
    """Sizes of `parts` shares of `n`, larger ones first: the first n mod parts get one more."""
    base, extra = divmod(n, parts)
    return [base + (part < extra) for part in range(parts)]
