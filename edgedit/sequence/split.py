"""How one stream of tokens is shared by the ranks of a group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from edgedit.parallel.split import array_split

if TYPE_CHECKING:
    from edgedit.graph.builder import GraphBuilder
    from edgedit.graph.tensor import Tensor

MODES = ("uneven", "pad")


@dataclass(frozen=True)
class SPSequenceSplit:
    """The share of `rank` in a stream of `original_length` tokens over `world_size` ranks.

    Modes:
      uneven  the first S mod P ranks own one token more; nothing is padded, a rank may own nothing
      pad     every rank holds ceil(S / P) slots; the slots beyond the stream are padding, which is exchanged but
              dropped when unpacking, so that it never enters a softmax

    Raises ValueError for a negative length, a rank outside the group, or an unknown mode.
    """

    original_length: int
    world_size: int = 1
    rank: int = 0
    mode: str = "uneven"

    def __post_init__(self) -> None:
        if self.original_length < 0:
            raise ValueError(f"a stream of {self.original_length} tokens; at least 0 are needed")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is outside the group of {self.world_size}")
        if self.mode not in MODES:
            raise ValueError(f"unknown split mode {self.mode!r}; use {' or '.join(MODES)}")

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Slots that each rank holds, padding included."""
        if self.mode == "pad":
            return (-(-self.original_length // self.world_size),) * self.world_size
        return tuple(array_split(self.original_length, self.world_size))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First token of each rank's share, at most the stream's length."""
        return tuple(min(sum(self.lengths[:rank]), self.original_length) for rank in range(self.world_size))

    @cached_property
    def valid_lengths(self) -> tuple[int, ...]:
        """Tokens of the stream that each rank holds, without padding."""
        ends = (*self.offsets[1:], self.original_length)
        return tuple(end - begin for begin, end in zip(self.offsets, ends, strict=True))

    @property
    def padded_length(self) -> int:
        return sum(self.lengths)

    @property
    def padding(self) -> int:
        """Slots of all ranks together that hold no token."""
        return self.padded_length - self.original_length

    @property
    def local_length(self) -> int:
        return self.lengths[self.rank]

    @property
    def local_offset(self) -> int:
        return self.offsets[self.rank]

    def padded_input(self, b: GraphBuilder, x: Tensor, axis: int, fill: Tensor | None = None) -> Tensor:
        """x with its token axis extended to `padded_length`, by zeros or by `fill` (the same shape, padding long)."""
        self._check(x, axis)
        if not self.padding:
            return x
        if fill is None:
            import numpy as np

            shape = (*x.shape[:axis], self.padding, *x.shape[axis + 1 :])
            fill = b.constant("padding", np.zeros(shape, np.int32 if x.dtype == "i32" else np.float32))
        return b.concat([x, fill], axis)

    def local(self, b: GraphBuilder, x: Tensor, axis: int) -> Tensor:
        """This rank's slots of the whole (padded) tensor, as a view."""
        begin = sum(self.lengths[: self.rank])
        return b.slice(self.padded_input(b, x, axis), axis, begin, begin + self.local_length)

    def _check(self, x: Tensor, axis: int) -> None:
        if x.shape[axis] != self.original_length:
            raise ValueError(
                f"axis {axis} of {x!r} has {x.shape[axis]} tokens, the split is of {self.original_length}"
            )
