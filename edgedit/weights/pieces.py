"""Where the rows of a tensor of another layout stand in a model's own parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edgedit.weights.name_map import Target


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [begin, end) of a tensor are those of `parameter` from row `first` on."""

    parameter: str
    begin: int
    end: int
    first: int = 0

    @property
    def length(self) -> int:
        return self.end - self.begin


def pieces_of(targets: Iterable[Target], shapes: Mapping[str, tuple[int, ...]]) -> tuple[Piece, ...]:
    """The pieces of a tensor that stands for `targets`, in the order of its rows; none is turned over."""
    pieces = []
    for target in targets:
        assert not target.transpose, f"{target.name} is turned over"
        shape = shapes[target.name]
        rows = shape[0] if shape else 1
        begin = rows // (target.end - target.begin) * target.begin
        half = rows // 2 if target.swap else 0
        if half:
            pieces.append(Piece(target.name, begin, begin + half, first=half))
        pieces.append(Piece(target.name, begin + half, begin + rows))
    return tuple(pieces)
