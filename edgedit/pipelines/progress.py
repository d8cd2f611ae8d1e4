"""Progress bars on stderr: one rank draws them, the others stay silent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")


class Progress:
    """Bars where ``shown``; otherwise nothing is drawn and nothing imported."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown

    def over(self, items: Iterable[Item], label: str, total: int) -> Iterator[Item]:
        """The items, counted on a bar named ``label``."""
        if not self.shown:
            yield from items
            return
        with _bar(label, total=total) as bar:
            for item in items:
                yield item
                bar.update()

    @contextmanager
    def nbytes(self, label: str) -> Iterator[Callable[[int, int], None] | None]:
        """A callback that takes (bytes done, bytes in all) to a bar named ``label``."""
        if not self.shown:
            yield None
            return
        with _bar(label, unit="B", unit_scale=True) as bar:

            def advance(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            yield advance


def _bar(label: str, **options: Any) -> Any:
    from tqdm import tqdm

    # into a file or through a launcher: a line now and then, and none for what is soon done
    pace = {} if sys.stderr.isatty() else {"mininterval": 10.0, "delay": 2.0}
    return tqdm(desc=f"{label:<14}", dynamic_ncols=True, **pace, **options)
