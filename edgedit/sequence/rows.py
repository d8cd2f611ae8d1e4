"""How layers on a picture reach the rows that other ranks hold, so that several ranks compute what one would."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.ops.collectives import Group
from edgedit.graph.ops.layout import MAX_WRITE_NBYTES
from edgedit.graph.tensor import Tensor
from edgedit.parallel.split import array_split

TO_ROWS = (2, 0, 1, 3)  # [B, C, H, W] -> [H, B, C, W]
FROM_ROWS = (1, 2, 0, 3)


class PictureStrategy(ABC):
    """What a network on pictures [B, C, H, W] knows of ranks: it asks for what it cannot compute of its own rows."""

    @abstractmethod
    def split(self, b: GraphBuilder, x: Tensor) -> Tensor:
        """This rank's rows of a picture that every rank holds whole."""

    @abstractmethod
    def gather(self, b: GraphBuilder, x: Tensor, factor: int) -> Tensor:
        """The whole picture of every rank's rows; there are `factor` of them for each that was split."""

    @abstractmethod
    def with_neighbours(self, b: GraphBuilder, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Own rows between one above and one below, and how many of these (0 or 1) lie outside the picture: the padding
        that is left to do."""

    @abstractmethod
    def group_norm(
        self, b: GraphBuilder, x: Tensor, groups: int, eps: float, weight: Tensor, bias: Tensor
    ) -> Tensor:
        """As `GraphBuilder.group_norm`, over the rows of all ranks."""

    @abstractmethod
    def attention(self, b: GraphBuilder, q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
        """Attention of own positions, `width` of them in each row that was split, to those of all ranks: q, k, v
        [B, S, 1, C] give [B, S, C] of type `b.activations`."""


class WholePicture(PictureStrategy):
    """One rank has all rows."""

    def split(self, b: GraphBuilder, x: Tensor) -> Tensor:
        return x

    def gather(self, b: GraphBuilder, x: Tensor, factor: int) -> Tensor:
        return x

    def with_neighbours(self, b: GraphBuilder, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        return x, (1, 1)

    def group_norm(
        self, b: GraphBuilder, x: Tensor, groups: int, eps: float, weight: Tensor, bias: Tensor
    ) -> Tensor:
        return b.group_norm(x, groups, eps, weight, bias)

    def attention(self, b: GraphBuilder, q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
        return b.attention(q, k, v, dtype=b.activations)


class SplitRows(PictureStrategy):
    """Runs of rows over the ranks of a group, the first ones with one more where they are uneven.

    Ranks beyond the rows have none: they take part in what is exchanged and compute nothing. `height` is that of the
    picture that is split; later ones have a multiple of its rows.
    """

    def __init__(self, group: Group, height: int) -> None:
        self.group = group
        self.height = height
        self.rows = array_split(height, group.size)
        self.own = self.rows[group.rank]
        self.active = min(height, group.size)  # ranks that have rows: the first ones

    def split(self, b: GraphBuilder, x: Tensor) -> Tensor:
        begin = sum(self.rows[: self.group.rank])
        return b.contiguous(b.slice(x, 2, begin, begin + self.own))

    def gather(self, b: GraphBuilder, x: Tensor, factor: int) -> Tensor:
        rows = b.contiguous(b.permute(x, TO_ROWS))
        whole = b.all_gather("rows", rows, self.group, [factor * count for count in self.rows])
        return b.contiguous(b.permute(whole, FROM_ROWS))

    def with_neighbours(self, b: GraphBuilder, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        batch, channels, rows, width = x.shape
        place, row = self.group.rank, batch * channels * width
        above = [place - 1] if self.own and place > 0 else []
        below = [place + 1] if self.own and place + 1 < self.active else []
        counts = [row * (peer in (*above, *below)) for peer in range(self.group.size)]
        ends = [b.slice(x, 2, 0, 1) for _ in above] + [b.slice(x, 2, rows - 1, rows) for _ in below]
        flat = [b.reshape(b.contiguous(end), (row,)) for end in ends]
        received = b.collective(
            "all_to_all",
            "neighbours",
            self.group.name,
            b.contiguous(b.concat(flat, 0)) if flat else b.empty((0,), "nothing"),
            (sum(counts),),
            counts,
            counts,
            place,
            total_count=2 * (self.active - 1) * row,
        )
        parts = [
            b.reshape(b.slice(received, 0, index * row, (index + 1) * row), (batch, channels, 1, width))
            for index in range(len(flat))
        ]
        stacked = _stacked(b, [*parts[: len(above)], x, *parts[len(above) :]])
        return stacked, (1 - len(above), 1 - len(below))

    def group_norm(
        self, b: GraphBuilder, x: Tensor, groups: int, eps: float, weight: Tensor, bias: Tensor
    ) -> Tensor:
        """Mean and variance in two passes, as one rank takes them [Wu and He 2018]."""
        batch, channels, rows, width = x.shape
        per_group = channels // groups
        if not self.own:
            zeros = b.constant("nothing", np.zeros((batch, groups, 1), np.float32))
            nothing = b.scale(zeros, 1.0)  # what is exchanged has to be computed
            for name in ("sums", "squares"):
                b.all_reduce(name, nothing, self.group)
            return x
        count = per_group * (rows // self.own) * self.height * width
        mean = b.scale(b.all_reduce("sums", group_sums(b, x, groups), self.group), 1.0 / count)
        centred = b.sub(x, by_channel(b, mean, per_group))
        squares = b.all_reduce("squares", group_squares(b, centred, groups), self.group)
        return scaled(b, centred, b.scale(squares, 1.0 / count), eps, weight, bias)

    def attention(self, b: GraphBuilder, q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
        k, v = (self._all_positions(b, name, x, width) for name, x in (("keys", k), ("values", v)))
        batch, positions, _, channels = q.shape
        if not self.own:
            return b.reshape(q, (batch, positions, channels))
        return b.attention(q, k, v, dtype=b.activations)

    def _all_positions(self, b: GraphBuilder, name: str, x: Tensor, width: int) -> Tensor:
        """[B, S, 1, C] of own rows -> those of all ranks, in order."""
        counts = [rows * width for rows in self.rows]
        positions = b.contiguous(b.permute(x, (1, 0, 2, 3)))
        return b.permute(b.all_gather(name, positions, self.group, counts), (1, 0, 2, 3))


def rows_over(group: Group, height: int) -> PictureStrategy:
    """How the ranks of a group share a picture of so many rows."""
    return WholePicture() if group.size == 1 else SplitRows(group, height)


def _stacked(b: GraphBuilder, parts: list[Tensor]) -> Tensor:
    """Pictures one below the other: [B, C, sum of rows, W]."""
    batch, channels, _, width = parts[0].shape
    height = sum(part.shape[2] for part in parts)
    whole = b.empty((batch, channels, height, width), "stacked")
    if whole.nbytes > MAX_WRITE_NBYTES:
        return b.concat(parts, 2)
    row = 0
    for part in parts:
        strides = (channels * height * width, height * width, width, 1)
        whole = b.write(whole, part, strides, row * width) if part.count else whole
        row += part.shape[2]
    return whole


def group_sums(b: GraphBuilder, x: Tensor, groups: int) -> Tensor:
    """Over each of the groups of channels of x [B, C, H, W]: [B, groups, 1]; first along the rows, on all threads."""
    lines = b.reshape(x, (x.count // x.shape[3], x.shape[3]))
    along = b.matmul(lines, b.constant("ones", np.ones((1, x.shape[3]), np.float32)))
    return b.row_sums(b.reshape(along, (x.shape[0], groups, along.count // x.shape[0] // groups)))


def group_squares(b: GraphBuilder, x: Tensor, groups: int) -> Tensor:
    """As `group_sums`, of the squares, which stand nowhere."""
    lines = b.reshape(x, (x.count // x.shape[3], 1, x.shape[3]))
    along = b.matmul(lines, lines)
    return b.row_sums(b.reshape(along, (x.shape[0], groups, along.count // x.shape[0] // groups)))


def scaled(
    b: GraphBuilder, centred: Tensor, variance: Tensor, eps: float, weight: Tensor, bias: Tensor
) -> Tensor:
    """The end of a group norm: values less their mean [B, C, H, W], variance of each group [B, groups, 1]."""
    batch, channels, _, _ = centred.shape
    deviation = b.sqrt(b.scale(variance, 1.0, eps))
    scales = b.repeat(b.reshape(weight, (1, channels, 1, 1)), (batch, channels, 1, 1))
    scales = b.div(scales, by_channel(b, deviation, channels // variance.shape[1]))
    return b.add(b.mul(centred, scales), b.reshape(bias, (channels, 1, 1)))


def by_channel(b: GraphBuilder, x: Tensor, per_group: int) -> Tensor:
    """[B, groups, 1] -> [B, channels, 1, 1], each value for all channels of its group."""
    batch, groups, _ = x.shape
    spread = b.repeat(x, (batch, groups, per_group))
    return b.reshape(spread, (batch, groups * per_group, 1, 1))
