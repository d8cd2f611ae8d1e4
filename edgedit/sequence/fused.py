"""Attention over streams with fused operators: norm, rotation and the layouts of both exchanges in one node each.

`fuses` is the predicate that every rank answers alike; sequence/exchange.py holds the generic twin.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.ops.exchange import Preparation
from edgedit.graph.registry import Exchange
from edgedit.graph.tensor import Tensor
from edgedit.sequence.layouts import Direction, SPAllToAll4DBatchLayout
from edgedit.sequence.strategy import Stream

PLANES = 3  # q, k, v


def exchange_of(layout: SPAllToAll4DBatchLayout, wire: Sequence[str]) -> Exchange:
    split = layout.splits[0]
    return Exchange(
        ranks=layout.world_size,
        rank=layout.rank,
        tokens=tuple(split.original_length for split in layout.splits),
        heads=layout.num_heads,
        head_dim=layout.head_dim,
        batch=layout.batch,
        padded=split.mode == "pad",
        wire=tuple(wire),
    )


def fuses(b: GraphBuilder, exchange: Exchange, streams: Sequence[Stream]) -> bool:
    """True when packing, receiving and what is done to q and k in between can all be fused."""
    ropes = [stream.rope for stream in streams if stream.rope]
    why_not = None
    if 0 < len(ropes) < len(streams):
        why_not = "only some of the streams are rotated"
    elif len({stream.norm_eps for stream in streams}) > 1:
        why_not = "the streams' norms differ in epsilon"
    elif any(
        norm is not None and (norm.node is not None or norm.dtype != "f32")
        for stream in streams
        for norm in (stream.q_norm, stream.k_norm)
    ):
        why_not = "norm weights that are no f32 leaves"
    return (
        b.fuses("pack", exchange, bool(ropes), why_not=why_not)
        and b.fuses("receive", exchange)
        and (not ropes or b.fuses("rope_table", len(ropes[0].periods)))
    )


def joint_planes(b: GraphBuilder, exchange: Exchange, streams: Sequence[Stream]) -> Tensor:
    """[3 * B, H, S, D] of all streams on the one rank that holds them, rounded as a wire of `b.activations` would."""
    return b.pack_planes(exchange, _planes(streams), _preparation(b, streams), b.activations)


def streams_to_heads(
    b: GraphBuilder, layout: SPAllToAll4DBatchLayout, exchange: Exchange, streams: Sequence[Stream], axis: str
) -> Tensor:
    """[3 * B, h, S, D] of this rank's heads. q and k are normed and rotated by their owner, each element once."""
    send = b.pack(exchange, _planes(streams), _preparation(b, streams))
    return b.receive_planes(exchange, _all_to_all(b, layout, exchange, send, axis), b.activations)


def attend(b: GraphBuilder, planes: Tensor) -> Tensor:
    """Attention over [3 * B, h, S, D]: [B, S, h * D]."""
    q, k, v = (b.permute(x, (0, 2, 1, 3)) for x in b.split(planes, PLANES, axis=0))
    return b.attention(q, k, v, dtype=b.activations)


def heads_to_streams(
    b: GraphBuilder, layout: SPAllToAll4DBatchLayout, exchange: Exchange, joint: Tensor, axis: str
) -> list[Tensor]:
    """[B, S, h, D] of this rank's heads -> each stream's [B, s_i, H * D]."""
    send = b.pack_heads(exchange, joint)
    return b.receive_streams(exchange, _all_to_all(b, layout, exchange, send, axis), b.activations)


def _all_to_all(
    b: GraphBuilder, layout: SPAllToAll4DBatchLayout, exchange: Exchange, send: Tensor, axis: str
) -> Tensor:
    def scaled(count: int) -> int:  # from elements to those of the buffer's type
        return count // (layout.planes * layout.head_dim) * exchange.elements_per_row

    forward = layout.direction is Direction.SEQ_TO_HEAD
    return b.collective(
        "all_to_all",
        layout.direction.value,
        axis,
        send,
        (sum(map(scaled, layout.recv_counts)),),
        [scaled(count) for count in layout.send_counts],
        [scaled(count) for count in layout.recv_counts],
        layout.rank,
        total_count=scaled(layout.total_count),
        ops=f"fused:{','.join(exchange.wire)}" + (":prepared" if forward else ""),
    )


def _planes(streams: Sequence[Stream]) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(stream.q, stream.k, stream.v) for stream in streams]


def _preparation(b: GraphBuilder, streams: Sequence[Stream]) -> Preparation | None:
    ropes = [stream.rope for stream in streams if stream.rope]
    if not ropes and all(stream.q_norm is None and stream.k_norm is None for stream in streams):
        return None
    return Preparation(
        norms=tuple((stream.q_norm, stream.k_norm, None) for stream in streams),
        rotated=(bool(ropes), bool(ropes), False),
        tables=tuple(b.rope_table(rope.positions, rope.periods) for rope in ropes),
        eps=streams[0].norm_eps,
    )
