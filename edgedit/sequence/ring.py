"""Ring attention [Liu et al. 2023]: tokens are sharded everywhere. Queries stay, keys and values go round the ranks,
each hop under way while its forerunner is attended to; what the hops give is merged by the sums behind their
softmax."""

from __future__ import annotations

from collections.abc import Sequence

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.sequence import fused
from edgedit.sequence.keys_and_values import PLANES, KeysAndValues
from edgedit.sequence.masks import KEYS, part_of, ranges_of
from edgedit.sequence.prepared import prepare
from edgedit.sequence.sharded import no_tokens
from edgedit.sequence.split import SPSequenceSplit
from edgedit.sequence.strategy import Stream
from edgedit.sequence.wire import count_on_wire, from_wire, to_wire


class Ring(KeysAndValues):
    """Chunks may differ in size and be empty: a rank without a token still passes on what it receives. Partial results
    and their merging are f32.
    """

    AXIS = "ring"

    def _attend(
        self,
        b: GraphBuilder,
        streams: Sequence[Stream],
        shares: Sequence[SPSequenceSplit],
        mask: Tensor | None,
    ) -> Tensor:
        is_fused = fused.fuses(b, fused.exchange_within(streams, (self.wire_dtype,) * PLANES), streams)
        prepared = prepare(b, streams, self.wire_dtype, is_fused)
        chunks = _Chunks(self, streams, shares, prepared.own.shape)
        sums = _Sums(b, prepared.q, mask, chunks.count + (prepared.resident is not None))
        flying = to_wire(b, prepared.own, self.wire_dtype)
        flying = b.reshape(flying, (flying.count,))
        for hop in range(self.degree):
            held_by, chunk = chunks.owner(hop), flying
            if hop + 1 < self.degree:
                # only what is attended to by now leaves room for the hop after the next
                flying = self._shift(b, chunk, hop + 1, chunks, is_fused, after=sums.latest)
            if hop == 0 and prepared.resident is not None:
                sums.add(prepared.resident, ranges_of(streams, shares, self.rank, replicated=True))
            if chunks.tokens[held_by]:
                ranges = ranges_of(streams, shares, held_by, replicated=False)
                sums.add(from_wire(b, chunk, self.wire_dtype, chunks.shape(held_by)), ranges)
        return sums.result()

    def _shift(
        self,
        b: GraphBuilder,
        chunk: Tensor,
        hop: int,
        chunks: _Chunks,
        is_fused: bool,
        after: Tensor | None,
    ) -> Tensor:
        """Pass a chunk on to the next rank; returns that of the previous one, flat."""
        sent, received = [0] * self.degree, [0] * self.degree
        sent[(self.rank + 1) % self.degree] = chunks.size(chunks.owner(hop - 1))
        received[(self.rank - 1) % self.degree] = count = chunks.size(chunks.owner(hop))
        return b.collective(
            "ring_shift",
            f"hop{hop}",
            self.axis,
            chunk,
            (count,),
            sent,
            received,
            self.rank,
            total_count=sum(chunks.size(rank) for rank in range(self.degree)),
            ops=f"fused:{self.wire_dtype}" if is_fused else "generic",
            after=after,
        )


class _Chunks:
    """The keys and values of each rank, [2 * B, H, tokens, D]."""

    def __init__(
        self,
        ring: Ring,
        streams: Sequence[Stream],
        shares: Sequence[SPSequenceSplit],
        own: tuple[int, ...],
    ) -> None:
        self._ring = ring
        self._rows, self._heads, _, self._head_dim = own
        sharded = [
            share.valid_lengths
            for stream, share in zip(streams, shares, strict=True)
            if not stream.replicated
        ]
        self.tokens = [sum(of_rank) for of_rank in zip(*sharded, strict=True)]

    @property
    def count(self) -> int:
        """Chunks that hold any token."""
        return sum(tokens > 0 for tokens in self.tokens)

    def owner(self, hop: int) -> int:
        """The rank whose chunk is here after so many hops."""
        return (self._ring.rank - hop) % self._ring.degree

    def shape(self, rank: int) -> tuple[int, ...]:
        return self._rows, self._heads, self.tokens[rank], self._head_dim

    def size(self, rank: int) -> int:
        """Elements of what travels."""
        values = self._rows * self._heads * self.tokens[rank] * self._head_dim
        return count_on_wire(self._ring.wire_dtype, values)


class _Sums:
    """Attention of q [B, s, H, D] to `num_parts` parts of the keys, of which any number of queries may be none."""

    def __init__(self, b: GraphBuilder, q: Tensor, mask: Tensor | None, num_parts: int) -> None:
        self._b, self._q, self._mask, self._left = b, q, mask, num_parts
        self.latest: Tensor | None = None

    def add(self, keys_and_values: Tensor, places: Sequence[tuple[int, int]]) -> None:
        """[2 * B, H, tokens, D], and where these stand in the joint sequence."""
        if not self._q.count:
            return
        b, q = self._b, self._q
        k, v = fused.planes_of(b, keys_and_values, PLANES)
        mask = part_of(b, self._mask, KEYS, places)
        self._left -= 1
        if self.latest is None and not self._left:
            self.latest = b.attention(q, k, v, mask=mask, dtype=b.activations)
            return
        part = b.attention_partial(q, k, v, mask=mask)
        if self.latest is None:
            self.latest = part
        elif self._left:
            self.latest = b.attention_merge(self.latest, part)
        else:
            self.latest = b.attention_merged(self.latest, part, b.activations)

    def result(self) -> Tensor:
        """[B, s, H * D] of type `b.activations`."""
        assert self.latest is None or not self._left, f"{self._left} parts of the keys are missing"
        return no_tokens(self._b, self._q) if self.latest is None else self.latest
