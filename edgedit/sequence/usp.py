"""Unified sequence parallelism [Fang and Zhao 2024, USP]: Ulysses within groups of ranks, ring attention or gathered
keys and values between them. Tokens are shared by the groups first, then within each."""

from __future__ import annotations

from collections.abc import Sequence

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.sequence.keys_and_values import KeysAndValues
from edgedit.sequence.strategy import Stream
from edgedit.sequence.ulysses import Ulysses


class USP(Ulysses):
    """Ulysses over `degree` ranks inside; `outer` shares tokens among the groups of these.

    wire_dtype, mode  as of Ulysses; between groups tokens are shared as `outer` says
    """

    def __init__(
        self,
        degree: int,
        rank: int,
        outer: KeysAndValues,
        wire_dtype: str | Sequence[str] = "f32",
        mode: str = "uneven",
    ) -> None:
        super().__init__(degree, rank, wire_dtype, mode)
        self.outer = outer

    def split(self, b: GraphBuilder, x: Tensor, axis: int) -> Tensor:
        return super().split(b, self.outer.split(b, x, axis), axis)

    def gather(
        self, b: GraphBuilder, x: Tensor, length: int, name: str = "gather", total_length: int | None = None
    ) -> Tensor:
        chunk = super().gather(b, x, self._length_within(length), name, self._total_length([length]))
        return self.outer.gather(b, chunk, length, f"{name}_chunks", total_length)

    def _length_within(self, length: int) -> int:
        return self.outer.share(length).local_length

    def _total_length(self, lengths: Sequence[int]) -> int:
        # the first group holds the longest chunks
        fullest = (self.outer.share(length).lengths[0] for length in lengths)
        return sum(self.share(length).padded_length for length in fullest)

    def _attend(
        self, b: GraphBuilder, planes: Sequence[Tensor], streams: Sequence[Stream], mask: Tensor | None
    ) -> Tensor:
        chunks, begin = [], 0
        for stream in streams:
            end = begin + self._tokens_within(stream)
            q, k, v = (b.slice(x, 1, begin, end) for x in planes)
            chunks.append(Stream(q, k, v, stream.length, replicated=stream.replicated))
            begin = end
        outputs = self.outer.attention(b, chunks, mask)
        return b.reshape(b.concat(outputs, 1), planes[0].shape)
