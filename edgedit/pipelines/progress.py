"""Progress bars on stderr: one rank draws them, the others stay silent."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


class Progress:
    """Wraps loops in bars where ``shown``; otherwise hands the items through."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown

    def over(self, items: Iterable[Item], label: str, total: int) -> Iterator[Item]:
        """The items, counted on a bar named ``label``."""
        if not self.shown:
            yield from items
            return
        from tqdm import tqdm

        # into a file or through a launcher, a line now and then instead of ten a second
        interval_s = 0.1 if sys.stderr.isatty() else 10.0
        yield from tqdm(
            items, desc=label, total=total, mininterval=interval_s, leave=True, dynamic_ncols=True
        )
