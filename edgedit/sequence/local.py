"""Attention where one rank holds every token."""

from __future__ import annotations

from collections.abc import Sequence

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.registry import Exchange
from edgedit.graph.tensor import Tensor
from edgedit.sequence import fused
from edgedit.sequence.masks import whole_mask
from edgedit.sequence.strategy import AttentionStrategy, Stream


class Local(AttentionStrategy):
    """No exchange: streams are joined, attended and taken apart again."""

    def split(self, b: GraphBuilder, x: Tensor, axis: int) -> Tensor:
        return x

    def gather(self, b: GraphBuilder, x: Tensor, length: int) -> Tensor:
        return x

    def attention(
        self, b: GraphBuilder, streams: Sequence[Stream], mask: Tensor | None = None
    ) -> list[Tensor]:
        batch, _, num_heads, head_dim = streams[0].q.shape
        tokens = tuple(stream.length for stream in streams)
        exchange = Exchange(
            1, 0, tokens, num_heads, head_dim, batch, padded=False, wire=(b.activations,) * fused.PLANES
        )
        if fused.fuses(b, exchange, streams):
            q, k, v = fused.planes_of(b, fused.joint_planes(b, exchange, streams))
        else:
            prepared = [stream.prepared(b) for stream in streams]
            planes = (b.concat([b.contiguous(x) for x in plane], 1) for plane in zip(*prepared, strict=True))
            q, k, v = (b.cast(plane, b.activations) for plane in planes)
        joint = b.attention(q, k, v, mask=whole_mask(b, mask, streams), dtype=b.activations)
        outputs, begin = [], 0
        for stream in streams:
            outputs.append(b.slice(joint, 1, begin, begin + stream.length))
            begin += stream.length
        return outputs
