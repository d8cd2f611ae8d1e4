"""Masks over the joint sequence of all streams, of which a rank takes the parts that concern it."""

from __future__ import annotations

from collections.abc import Sequence

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.ops.checks import require
from edgedit.graph.tensor import Tensor
from edgedit.sequence.split import SPSequenceSplit
from edgedit.sequence.strategy import Stream

HEADS, QUERIES, KEYS = 1, 2, 3  # axes of a mask
_NDIM = 4

Range = tuple[int, int]  # begin and end


def whole_mask(b: GraphBuilder, mask: Tensor | None, streams: Sequence[Stream]) -> Tensor | None:
    """The mask with four axes. Raises ValueError for one that is not of the joint sequence."""
    if mask is None:
        return None
    length = sum(stream.length for stream in streams)
    fits = mask.ndim <= _NDIM and mask.shape[-1] == length and mask.shape[-2] in (1, length)
    require(fits, "attention", f"a mask must be [B | 1, H | 1, S | 1, S] with S = {length}", mask)
    if mask.ndim == _NDIM:
        return mask
    return b.reshape(mask, (*(1,) * (_NDIM - mask.ndim), *mask.shape))


def part_of(b: GraphBuilder, mask: Tensor | None, axis: int, ranges: Sequence[Range]) -> Tensor | None:
    """Ranges of an axis side by side; an axis of length one serves all."""
    if mask is None or mask.shape[axis] == 1:
        return mask
    return b.concat([b.slice(mask, axis, begin, end) for begin, end in ranges], axis)


def ranges_of(
    streams: Sequence[Stream], shares: Sequence[SPSequenceSplit], rank: int, replicated: bool | None = None
) -> list[Range]:
    """Where the tokens that `rank` holds stand in the joint sequence, stream by stream.

    `replicated` selects streams that are, or are not, held by all ranks; None takes both.
    """
    ranges = []
    begin = 0
    for stream, share in zip(streams, shares, strict=True):
        if replicated in (None, stream.replicated):
            first = 0 if stream.replicated else share.offsets[rank]
            count = stream.length if stream.replicated else share.valid_lengths[rank]
            ranges.append((begin + first, begin + first + count))
        begin += stream.length
    return ranges
