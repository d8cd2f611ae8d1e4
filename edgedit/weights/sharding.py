"""What one rank holds of a weight that several ranks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgedit.graph import _ggml
from edgedit.weights import convert


@dataclass(frozen=True, slots=True)
class Part:
    """Runs [begin, end) along one axis of a tensor, one after another.

    cuts  every place at which the share of any rank begins or ends: what has to hold for all ranks alike is told
          from these
    """

    axis: int
    spans: tuple[tuple[int, int], ...]
    cuts: tuple[int, ...]

    @property
    def length(self) -> int:
        return sum(end - begin for begin, end in self.spans)

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Shape of the part of a tensor of shape `whole`."""
        return (*whole[: self.axis], self.length, *whole[self.axis + 1 :])


Scale = np.ndarray | None


def share_of(values: np.ndarray, stored: str, scale: Scale, part: Part) -> tuple[Any, str, Scale]:
    """Values, stored type and factor of a part of a tensor, all as `TensorSource` gives them of the whole.

    Nothing is read yet: the values are a view, or `Columns` that are taken out row by row.
    """
    if part.axis == 0:
        ((begin, end),) = part.spans
        rows = slice(begin, end)
        return values[rows], stored, convert.part_of(scale, rows)
    spans = part.spans
    if convert.is_quantised(stored):
        block = _ggml.block_size(stored.lower())
        if any(edge % block for span in spans for edge in span):
            return Columns(values, spans, lambda rows: convert.to_f32(rows, stored)), "F32", scale
        block_nbytes = _ggml.row_nbytes(stored.lower(), block)
        spans = tuple((begin // block * block_nbytes, end // block * block_nbytes) for begin, end in spans)
    if len(spans) == 1:
        return values[:, spans[0][0] : spans[0][1]], stored, scale
    return Columns(values, spans), stored, scale


class Columns:
    """Runs of columns of values [N, K], beside each other, joined only where rows are taken out by a slice.

    decode  what a row is before its columns are taken; as it stands for None
    """

    ndim = 2

    def __init__(
        self,
        values: np.ndarray,
        spans: Sequence[tuple[int, int]],
        decode: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self.values, self.spans, self.decode = values, spans, decode
        self.shape = (len(values), sum(end - begin for begin, end in spans))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        values = self.values[rows]
        if self.decode:
            values = self.decode(values)
        return np.concatenate([values[:, begin:end] for begin, end in self.spans], axis=1)
