"""What the strategies have in common that share the tokens of each stream among the ranks of one mesh axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.sequence.split import SPSequenceSplit
from edgedit.sequence.strategy import AttentionStrategy, Stream


class Sharded(AttentionStrategy):
    """Over the `degree` ranks of mesh axis `axis`, of which this is number `rank`.

    mode  how tokens are shared, see SPSequenceSplit
    """

    def __init__(self, degree: int, rank: int, axis: str, mode: str = "uneven") -> None:
        self.degree = degree
        self.rank = rank
        self.axis = axis
        self.mode = mode

    def split(self, b: GraphBuilder, x: Tensor, axis: int) -> Tensor:
        return self.share(x.shape[axis]).local(b, x, axis)

    def gather(
        self, b: GraphBuilder, x: Tensor, length: int, name: str = "gather", total_length: int | None = None
    ) -> Tensor:
        """As of every strategy. `name` is that of the collective, `total_length` as of SPAllToAll4DBatchLayout."""
        share = self.share(length)
        batch, _, channels = x.shape
        counts = [batch * slots * channels for slots in share.lengths]
        total = None if total_length is None else batch * total_length * channels
        received = gathered(b, name, self, b.contiguous(x), counts, total_count=total)
        whole = b.empty((batch, length, channels), "whole")
        for peer, slots in enumerate(share.lengths):
            tokens = share.valid_lengths[peer]
            if not batch * tokens * channels:
                continue
            strides = (4 * slots * channels, 4 * channels, 4)
            part = b.view(received, (batch, tokens, channels), strides, 4 * sum(counts[:peer]))
            whole = b.write(whole, part, (length * channels, channels, 1), share.offsets[peer] * channels)
        return whole

    def share(self, length: int) -> SPSequenceSplit:
        """This rank's share of a stream of so many tokens."""
        return SPSequenceSplit(length, self.degree, self.rank, self.mode)


def gathered(
    b: GraphBuilder,
    name: str,
    ranks: Sharded,
    send: Tensor,
    counts: Sequence[int],
    ops: str = "generic",
    total_count: int | None = None,
) -> Tensor:
    """What all ranks send, one after another: [sum of counts], `counts` being elements of each rank."""
    return b.collective(
        "all_gather",
        name,
        ranks.axis,
        send,
        (sum(counts),),
        [counts[ranks.rank]] * ranks.degree,
        counts,
        ranks.rank,
        total_count=total_count,
        ops=ops,
    )


def without_padding(b: GraphBuilder, stream: Stream, share: SPSequenceSplit) -> Stream:
    """The stream's tokens of this rank, padding left out."""
    tokens = share.valid_lengths[share.rank]
    if stream.replicated or tokens == share.local_length:
        return stream
    q, k, v = (b.slice(x, 1, 0, tokens) for x in (stream.q, stream.k, stream.v))
    rope = stream.rope and replace(stream.rope, positions=b.slice(stream.rope.positions, 1, 0, tokens))
    return replace(stream, q=q, k=k, v=v, rope=rope)


def with_padding(b: GraphBuilder, x: Tensor, share: SPSequenceSplit) -> Tensor:
    """x [B, tokens, C] of a stream, with zeros in the slots that hold no token."""
    batch, tokens, channels = x.shape
    slots = share.local_length
    if tokens == slots:
        return x
    zeros = b.constant("padding", np.zeros((batch, slots - tokens, channels), np.float32))
    strides = (slots * channels, channels, 1)
    padded = b.write(b.empty((batch, slots, channels), "padded"), zeros, strides, tokens * channels)
    if x.count:
        padded = b.write(padded, b.cast(x, "f32"), strides, 0)
    return b.cast(padded, x.dtype)


def taken_apart(
    b: GraphBuilder, joint: Tensor, streams: Sequence[Stream], shares: Sequence[SPSequenceSplit]
) -> list[Tensor]:
    """The outputs [B, s, C] of the streams from those of all tokens of this rank, padding put back."""
    outputs, begin = [], 0
    for stream, share in zip(streams, shares, strict=True):
        end = begin + stream.q.shape[1]
        output = b.slice(joint, 1, begin, end)
        outputs.append(output if stream.replicated else with_padding(b, output, share))
        begin = end
    return outputs


def no_tokens(b: GraphBuilder, q: Tensor) -> Tensor:
    """What attention gives for q [B, 0, H, D]: [B, 0, H * D]."""
    batch, _, heads, head_dim = q.shape
    return b.cast(b.empty((batch, 0, heads * head_dim), "no_tokens"), b.activations)

