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
_Q, _K, _V = range(PLANES)


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


def exchange_within(streams: Sequence[Stream], wire: Sequence[str]) -> Exchange:
    """The tokens that this rank holds, exchanged with nobody; one dtype per plane."""
    batch, _, heads, head_dim = streams[0].q.shape
    tokens = tuple(stream.q.shape[1] for stream in streams)
    return Exchange(1, 0, tokens, heads, head_dim, batch, padded=False, wire=tuple(wire))


def fuses(b: GraphBuilder, exchange: Exchange, streams: Sequence[Stream], why_not: str | None = None) -> bool:
    """True when packing, receiving and what is done to q and k in between can all be fused.

    `why_not` is a reason against it that the caller knows.
    """
    ropes = [stream.rope for stream in streams if stream.rope]
    if why_not:
        pass
    elif 0 < len(ropes) < len(streams):
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


def planes_of(b: GraphBuilder, joint: Tensor, planes: int = PLANES) -> list[Tensor]:
    """[planes * B, h, S, D] -> each plane's [B, S, h, D]."""
    return [b.permute(x, (0, 2, 1, 3)) for x in b.split(joint, planes, axis=0)]


def queries(b: GraphBuilder, streams: Sequence[Stream]) -> Tensor:
    """[B, s, H, D] of this rank's tokens, normed and rotated, of type `b.activations`."""
    exchange = exchange_within(streams, (b.activations,))
    parts = [(stream.q,) for stream in streams]
    (q,) = planes_of(b, b.pack_planes(exchange, parts, _preparation(b, streams, (_Q,)), b.activations), 1)
    return q


def keys_and_values(b: GraphBuilder, streams: Sequence[Stream], dtype: str) -> Tensor:
    """[2 * B, H, s, D] of this rank's tokens, k normed and rotated."""
    exchange = exchange_within(streams, (dtype, dtype))
    parts = [(stream.k, stream.v) for stream in streams]
    return b.pack_planes(exchange, parts, _preparation(b, streams, (_K, _V)), dtype)


def packed_keys_and_values(b: GraphBuilder, streams: Sequence[Stream], dtype: str) -> Tensor:
    """The same as a block of the head side of an exchange, see layouts: rows of k and v beside each other."""
    exchange = exchange_within(streams, (dtype, dtype))
    parts = [(stream.k, stream.v) for stream in streams]
    return b.pack(exchange, parts, _preparation(b, streams, (_K, _V)))


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


def _preparation(
    b: GraphBuilder, streams: Sequence[Stream], planes: Sequence[int] = range(PLANES)
) -> Preparation | None:
    """What is done to some of the planes q, k and v."""
    ropes = [stream.rope for stream in streams if stream.rope]
    if not ropes and all(stream.q_norm is None and stream.k_norm is None for stream in streams):
        return None
    norms = [(stream.q_norm, stream.k_norm, None) for stream in streams]
    rotated = (bool(ropes), bool(ropes), False)
    return Preparation(
        norms=tuple(tuple(of_stream[plane] for plane in planes) for of_stream in norms),
        rotated=tuple(rotated[plane] for plane in planes),
        tables=tuple(b.rope_table(rope.positions, rope.periods) for rope in ropes),
        eps=streams[0].norm_eps,
    )
