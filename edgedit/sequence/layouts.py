"""Index maps of the all-to-all that trades sharded tokens for sharded heads, as strided block copies. Pure.

Buffers hold one block per peer, slowest axis first:

    sequence side  own tokens of all heads:  block p = [streams][B][own tokens][heads of p][planes][D]
    head side      own heads of all tokens:  block p = [streams][B][tokens of p][own heads][planes][D]

SEQ_TO_HEAD sends the sequence side and receives the head side, HEAD_TO_SEQ the other way round; block p of rank r
arrives as block r of rank p. The C++ header csrc/layout.hpp states the same maps element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from edgedit.parallel.split import array_split
from edgedit.sequence.split import SPSequenceSplit


class Direction(Enum):
    SEQ_TO_HEAD = "seq_to_head"
    HEAD_TO_SEQ = "head_to_seq"


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One strided copy between a tensor (of `stream` and `plane`) and a buffer. Strides and offsets in elements.

    `shape` is what is copied; its last axis is dense on both sides.
    """

    stream: int
    plane: int
    shape: tuple[int, ...]
    tensor_strides: tuple[int, ...]
    tensor_offset: int
    buffer_strides: tuple[int, ...]
    buffer_offset: int


@dataclass(frozen=True)
class SPAllToAll4DBatchLayout:
    """What one rank exchanges: tensors are streams [B, s, H, D] on the sequence side (one per plane, such as q, k, v)
    and one joint tensor [B, S, h, planes, D] on the head side, with the streams' tokens one after another.

    splits     one per stream; all of the same group and rank
    num_heads  global heads H; shared like array_split, so H need not divide
    total_length  what `total_count` counts for tokens, padding included; those of the splits unless given. For groups
                  that hold unlike chunks of one sequence and yet have to plan alike.

    Raises ValueError when a rank would have no head, or the splits belong to different ranks.
    """

    direction: Direction
    splits: tuple[SPSequenceSplit, ...]
    num_heads: int
    head_dim: int
    planes: int = 1
    batch: int = 1
    total_length: int | None = None

    def __post_init__(self) -> None:
        groups = {(split.world_size, split.rank) for split in self.splits}
        if len(groups) != 1:
            raise ValueError(
                f"the streams belong to different ranks or groups: (size, rank) = {sorted(groups)}"
            )
        if min(self.head_dim, self.planes, self.batch) < 1:
            raise ValueError(
                f"head_dim {self.head_dim}, planes {self.planes}, batch {self.batch} must be at least 1"
            )
        if self.num_heads < self.world_size:
            raise ValueError(
                f"{self.num_heads} heads cannot be shared by {self.world_size} ranks; use 1 to {self.num_heads}"
            )

    # sizes

    @property
    def world_size(self) -> int:
        return self.splits[0].world_size

    @property
    def rank(self) -> int:
        return self.splits[0].rank

    @cached_property
    def heads(self) -> tuple[int, ...]:
        """Heads of each rank."""
        return tuple(array_split(self.num_heads, self.world_size))

    @property
    def num_local_heads(self) -> int:
        return self.heads[self.rank]

    @property
    def global_length(self) -> int:
        """Tokens of all streams together, without padding."""
        return sum(split.original_length for split in self.splits)

    @property
    def local_lengths(self) -> tuple[int, ...]:
        return tuple(split.local_length for split in self.splits)

    @property
    def joint_shape(self) -> tuple[int, ...]:
        """[B, S, h, planes * D]: the head side's tensor, planes beside each other."""
        return (self.batch, self.global_length, self.num_local_heads, self.planes * self.head_dim)

    @cached_property
    def sequence_side_counts(self) -> tuple[int, ...]:
        """Elements shared with each peer: own tokens of the peer's heads."""
        per_head = self._slot * sum(self.local_lengths)
        return tuple(per_head * heads for heads in self.heads)

    @cached_property
    def head_side_counts(self) -> tuple[int, ...]:
        """Elements shared with each peer: the peer's tokens of own heads."""
        per_token = self._slot * self.num_local_heads
        return tuple(
            per_token * sum(split.lengths[peer] for split in self.splits) for peer in range(self.world_size)
        )

    @property
    def send_counts(self) -> tuple[int, ...]:
        forward = self.direction is Direction.SEQ_TO_HEAD
        return self.sequence_side_counts if forward else self.head_side_counts

    @property
    def recv_counts(self) -> tuple[int, ...]:
        forward = self.direction is Direction.SEQ_TO_HEAD
        return self.head_side_counts if forward else self.sequence_side_counts

    @property
    def total_count(self) -> int:
        """Elements that all ranks send together, padding included."""
        tokens = self.total_length
        if tokens is None:
            tokens = sum(split.padded_length for split in self.splits)
        return self._slot * self.num_heads * tokens

    # index maps

    def sequence_side(self) -> Iterator[BlockCopy]:
        """Between this rank's streams [B, s, H, D] (per plane) and the sequence-side buffer."""
        for peer, heads in enumerate(self.heads):
            head_begin = sum(self.heads[:peer])
            begin = sum(self.sequence_side_counts[:peer])
            for stream, tokens in enumerate(self.local_lengths):
                for plane in range(self.planes):
                    yield BlockCopy(
                        stream,
                        plane,
                        shape=(self.batch, tokens, heads, self.head_dim),
                        tensor_strides=_dense(tokens, self.num_heads, self.head_dim),
                        tensor_offset=head_begin * self.head_dim,
                        buffer_strides=_dense(tokens, heads, self.planes * self.head_dim),
                        buffer_offset=begin + plane * self.head_dim,
                    )
                begin += self._slot * tokens * heads

    def head_side(self) -> Iterator[BlockCopy]:
        """Between the joint tensor [B, S, h, planes * D] and the head-side buffer; padding is left out."""
        heads, width = self.num_local_heads, self.planes * self.head_dim
        for peer in range(self.world_size):
            begin = sum(self.head_side_counts[:peer])
            joint_begin = 0
            for stream, split in enumerate(self.splits):
                token = joint_begin + split.offsets[peer]
                yield BlockCopy(
                    stream,
                    0,
                    shape=(self.batch, split.valid_lengths[peer], heads, width),
                    tensor_strides=_dense(self.global_length, heads, width),
                    tensor_offset=token * heads * width,
                    buffer_strides=_dense(split.lengths[peer], heads, width),
                    buffer_offset=begin,
                )
                begin += self._slot * split.lengths[peer] * heads
                joint_begin += split.original_length

    @property
    def _slot(self) -> int:
        """Elements of one token of one head: all planes and the batch."""
        return self.planes * self.head_dim * self.batch


def _dense(tokens: int, heads: int, width: int) -> tuple[int, ...]:
    """Strides of a packed [B, tokens, heads, width], of whose last axis a part may be used."""
    return (tokens * heads * width, heads * width, width, 1)


@dataclass(frozen=True)
class SPAllToAll4DLayout(SPAllToAll4DBatchLayout):
    """The same without a batch axis: tensors [s, H, D] and [S, h, planes, D], that is, batch 1."""

    def __post_init__(self) -> None:
        if self.batch != 1:
            raise ValueError(
                f"SPAllToAll4DLayout is for batch 1, got {self.batch}; use SPAllToAll4DBatchLayout"
            )
        super().__post_init__()
