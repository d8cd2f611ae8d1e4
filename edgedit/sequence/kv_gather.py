"""Attention with gathered keys and values: tokens are sharded everywhere. One all-gather before each attention brings
the keys and values of all tokens to every rank, whose own queries attend to them. Heads need not be shared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.registry import Exchange
from edgedit.graph.tensor import Tensor
from edgedit.sequence import fused
from edgedit.sequence.keys_and_values import PLANES, KeysAndValues
from edgedit.sequence.masks import Range, ranges_of
from edgedit.sequence.prepared import prepare
from edgedit.sequence.sharded import gathered, no_tokens
from edgedit.sequence.split import SPSequenceSplit
from edgedit.sequence.strategy import Stream
from edgedit.sequence.wire import count_on_wire, from_wire, to_wire


class KVGather(KeysAndValues):
    """Keys stand in the order of the joint sequence, so that a query's result has the bits that one rank gives it where
    kernels treat rows alike.
    """

    AXIS = "kv_gather"

    def _attend(
        self,
        b: GraphBuilder,
        streams: Sequence[Stream],
        shares: Sequence[SPSequenceSplit],
        mask: Tensor | None,
    ) -> Tensor:
        wire = (self.wire_dtype,) * PLANES
        if fused.fuses(b, fused.exchange_within(streams, wire), streams, self._why_not_fused(streams)):
            q, k, v = self._fused_planes(b, streams)
        else:
            q, k, v = self._generic_planes(b, streams, shares)
        return b.attention(q, k, v, mask=mask, dtype=b.activations) if q.count else no_tokens(b, q)

    def _why_not_fused(self, streams: Sequence[Stream]) -> str | None:
        if self.mode != "uneven":
            return "shares with padding that stays at home"
        return "a stream that every rank holds" if any(stream.replicated for stream in streams) else None

    def _fused_planes(self, b: GraphBuilder, streams: Sequence[Stream]) -> tuple[Tensor, Tensor, Tensor]:
        batch, _, heads, head_dim = streams[0].q.shape
        # what all ranks gather is what a rank would receive that owns `heads` of `degree` times as many
        exchange = Exchange(
            self.degree,
            self.rank,
            tuple(stream.length for stream in streams),
            heads * self.degree,
            head_dim,
            batch,
            padded=False,
            wire=(self.wire_dtype,) * PLANES,
        )
        send = fused.packed_keys_and_values(b, streams, self.wire_dtype)
        row = PLANES * batch * heads * head_dim
        counts = [row * tokens for tokens in self._tokens(streams)]
        received = gathered(b, self.AXIS, self, send, counts, ops=f"fused:{self.wire_dtype}")
        k, v = fused.planes_of(b, b.receive_planes(exchange, received, b.activations), PLANES)
        return fused.queries(b, streams), k, v

    def _generic_planes(
        self, b: GraphBuilder, streams: Sequence[Stream], shares: Sequence[SPSequenceSplit]
    ) -> tuple[Tensor, Tensor, Tensor]:
        prepared = prepare(b, streams, self.wire_dtype, is_fused=False)
        rows, heads, _, head_dim = prepared.own.shape  # rows: k and v of every picture
        length = sum(stream.length for stream in streams)
        tokens = self._tokens(streams)
        counts = [rows * heads * head_dim * count for count in tokens]
        send = to_wire(b, prepared.own, self.wire_dtype)
        travelling = [count_on_wire(self.wire_dtype, count) for count in counts]
        received = from_wire(b, gathered(b, self.AXIS, self, send, travelling), self.wire_dtype, (sum(counts),))
        received = b.cast(received, "f32")
        joint = b.empty((rows, heads, length, head_dim), "joint")

        for peer, begin in enumerate(accumulate(counts[:-1], initial=0)):
            ranges = ranges_of(streams, shares, peer, replicated=False)
            joint = _placed(b, joint, received, begin, ranges)
        if prepared.resident is not None:
            resident = b.cast(prepared.resident, "f32")
            joint = _placed(b, joint, resident, 0, ranges_of(streams, shares, self.rank, replicated=True))
        k, v = (b.cast(x, b.activations) for x in b.split(joint, PLANES, axis=0))
        return prepared.q, b.permute(k, (0, 2, 1, 3)), b.permute(v, (0, 2, 1, 3))

    def _tokens(self, streams: Sequence[Stream]) -> list[int]:
        """Sharded tokens of each rank."""
        lengths = [self.share(stream.length).valid_lengths for stream in streams if not stream.replicated]
        return [sum(of_rank) for of_rank in zip(*lengths, strict=True)]


def _placed(b: GraphBuilder, joint: Tensor, blocks: Tensor, begin: int, ranges: Sequence[Range]) -> Tensor:
    """Copy a block [2 * B, H, tokens, D], which begins at an element of `blocks`, to where its tokens belong."""
    rows, heads, length, head_dim = joint.shape
    tokens = sum(last - first for first, last in ranges)
    strides = (4 * heads * tokens * head_dim, 4 * tokens * head_dim, 4 * head_dim, 4)
    for first, last in ranges:
        if last == first:
            continue
        part = b.view(blocks, (rows, heads, last - first, head_dim), strides, 4 * begin)
        joint = b.write(
            joint, part, (heads * length * head_dim, length * head_dim, head_dim, 1), first * head_dim
        )
        begin += (last - first) * head_dim
    return joint
