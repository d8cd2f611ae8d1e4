"""Ulysses sequence parallelism [Jacobs et al. 2023, DeepSpeed-Ulysses]: tokens are sharded everywhere but inside
attention, where heads are. One all-to-all before attention carries q, k and v of all streams, one brings the output
back."""

from __future__ import annotations

from collections.abc import Sequence

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.sequence import fused
from edgedit.sequence.exchange import heads_to_streams, streams_to_heads
from edgedit.sequence.layouts import Direction, SPAllToAll4DBatchLayout
from edgedit.sequence.split import SPSequenceSplit
from edgedit.sequence.strategy import AttentionStrategy, Stream

WIRE_DTYPES = ("f32", "f16", "bf16")


class Ulysses(AttentionStrategy):
    """Over the `degree` ranks of a mesh axis, of which this is number `rank`.

    wire_dtype  type on the wire, of all or of q, k and v each; results come back in the type of v
    mode        how tokens are shared, see SPSequenceSplit
    """

    def __init__(
        self,
        degree: int,
        rank: int,
        wire_dtype: str | Sequence[str] = "f32",
        mode: str = "uneven",
        axis: str = "ulysses",
    ) -> None:
        wire = (wire_dtype,) * fused.PLANES if isinstance(wire_dtype, str) else tuple(wire_dtype)
        if len(wire) != fused.PLANES or not set(wire) <= set(WIRE_DTYPES):
            raise ValueError(
                f"wire dtype {wire_dtype!r} is none of {', '.join(WIRE_DTYPES)}, nor one of them for each of q, k, v"
            )
        self.degree = degree
        self.rank = rank
        self.wire = wire
        self.mode = mode
        self.axis = axis

    def split(self, b: GraphBuilder, x: Tensor, axis: int) -> Tensor:
        return self._split_of(x.shape[axis]).local(b, x, axis)

    def gather(self, b: GraphBuilder, x: Tensor, length: int) -> Tensor:
        split = self._split_of(length)
        batch, _, channels = x.shape
        counts = [batch * slots * channels for slots in split.lengths]
        send = b.contiguous(x)
        received = b.collective(
            "all_gather",
            "gather",
            self.axis,
            send,
            (sum(counts),),
            [send.count] * self.degree,
            counts,
            self.rank,
        )
        whole = b.empty((batch, length, channels), "whole")
        for peer, slots in enumerate(split.lengths):
            tokens = split.valid_lengths[peer]
            if not tokens:
                continue
            strides = (4 * slots * channels, 4 * channels, 4)
            share = b.view(received, (batch, tokens, channels), strides, 4 * sum(counts[:peer]))
            whole = b.write(whole, share, (length * channels, channels, 1), split.offsets[peer] * channels)
        return whole

    def attention(self, b: GraphBuilder, streams: Sequence[Stream]) -> list[Tensor]:
        batch, _, num_heads, head_dim = streams[0].q.shape
        splits = tuple(self._split_of(stream.length) for stream in streams)
        inward = SPAllToAll4DBatchLayout(
            Direction.SEQ_TO_HEAD, splits, num_heads, head_dim, planes=3, batch=batch
        )
        outward = SPAllToAll4DBatchLayout(Direction.HEAD_TO_SEQ, splits, num_heads, head_dim, batch=batch)
        joint_heads = (batch, inward.global_length, inward.num_local_heads, head_dim)
        exchange = fused.exchange_of(inward, self.wire)
        if fused.fuses(b, exchange, streams):
            attended = fused.attend(b, fused.streams_to_heads(b, inward, exchange, streams, self.axis))
            back = fused.exchange_of(outward, self.wire[-1:])
            joint = b.reshape(attended, joint_heads)
            return fused.heads_to_streams(b, outward, back, joint, self.axis)
        prepared = [stream.prepared(b) for stream in streams]
        joint = streams_to_heads(b, inward, prepared, self.axis, self.wire)
        q, k, v = b.split(joint, 3, axis=3)  # [B, S, h, D] each
        joint = b.reshape(b.attention(q, k, v), joint_heads)
        outputs = heads_to_streams(b, outward, joint, self.axis, self.wire[-1])
        return [b.cast(b.reshape(x, (*x.shape[:2], num_heads * head_dim)), b.activations) for x in outputs]

    def _split_of(self, length: int) -> SPSequenceSplit:
        return SPSequenceSplit(length, self.degree, self.rank, self.mode)
