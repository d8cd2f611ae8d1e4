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
from edgedit.sequence.local import Local
from edgedit.sequence.masks import HEADS, part_of, whole_mask
from edgedit.sequence.sharded import Sharded, gathered
from edgedit.sequence.strategy import Stream
from edgedit.sequence.wire import WIRE_DTYPES

Planes = tuple[Tensor, Tensor, Tensor]  # q, k, v [B, S, h, D]


class Ulysses(Sharded):
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
        super().__init__(degree, rank, axis, mode)
        wire = (wire_dtype,) * fused.PLANES if isinstance(wire_dtype, str) else tuple(wire_dtype)
        if len(wire) != fused.PLANES or not set(wire) <= set(WIRE_DTYPES):
            raise ValueError(
                f"wire dtype {wire_dtype!r} is none of {', '.join(WIRE_DTYPES)}, nor one of them for each of q, k, v"
            )
        self.wire = wire

    def attention(
        self, b: GraphBuilder, streams: Sequence[Stream], mask: Tensor | None = None
    ) -> list[Tensor]:
        if all(stream.replicated for stream in streams):
            return Local().attention(b, streams, mask)
        inward, outward = self._layouts(streams)
        mask = whole_mask(b, mask, streams)
        begin = sum(inward.heads[: self.rank])
        mask = part_of(b, mask, HEADS, [(begin, begin + inward.num_local_heads)])
        exchange = fused.exchange_of(inward, self.wire)
        why_not = "a stream that every rank holds" if any(s.replicated for s in streams) else None
        if fused.fuses(b, exchange, streams, why_not):
            planes = fused.planes_of(b, fused.streams_to_heads(b, inward, exchange, streams, self.axis))
            joint = self._attend(b, tuple(planes), streams, mask)
            back = fused.exchange_of(outward, self.wire[-1:])
            return fused.heads_to_streams(b, outward, back, joint, self.axis)
        return self._generic_attention(b, streams, mask, inward, outward)

    def _layouts(self, streams: Sequence[Stream]) -> tuple[SPAllToAll4DBatchLayout, SPAllToAll4DBatchLayout]:
        """Of the exchanges to heads and back."""
        batch, _, num_heads, head_dim = streams[0].q.shape
        lengths = [stream.length for stream in streams if not stream.replicated]
        splits = tuple(self.share(self._length_within(length)) for length in lengths)

        def layout(direction: Direction, planes: int) -> SPAllToAll4DBatchLayout:
            total = self._total_length(lengths)
            return SPAllToAll4DBatchLayout(direction, splits, num_heads, head_dim, planes, batch, total)

        return layout(Direction.SEQ_TO_HEAD, fused.PLANES), layout(Direction.HEAD_TO_SEQ, 1)

    def _length_within(self, length: int) -> int:
        """How many of a stream's tokens the ranks of this group hold."""
        return length

    def _tokens_within(self, stream: Stream) -> int:
        return stream.length if stream.replicated else self._length_within(stream.length)

    def _total_length(self, lengths: Sequence[int]) -> int | None:
        """Of streams of these lengths, see SPAllToAll4DBatchLayout."""
        return None

    def _attend(
        self, b: GraphBuilder, planes: Sequence[Tensor], streams: Sequence[Stream], mask: Tensor | None
    ) -> Tensor:
        """Attention of this rank's heads, q, k and v [B, S, h, D] of all streams: [B, S, h, D]."""
        q, k, v = planes
        return b.reshape(b.attention(q, k, v, mask=mask, dtype=b.activations), q.shape)

    def _generic_attention(
        self,
        b: GraphBuilder,
        streams: Sequence[Stream],
        mask: Tensor | None,
        inward: SPAllToAll4DBatchLayout,
        outward: SPAllToAll4DBatchLayout,
    ) -> list[Tensor]:
        prepared = [stream.prepared(b) for stream in streams]
        travelling = [
            planes for planes, stream in zip(prepared, streams, strict=True) if not stream.replicated
        ]
        joint = streams_to_heads(b, inward, travelling, self.axis, self.wire)
        planes = b.split(joint, fused.PLANES, axis=3)
        if len(travelling) < len(streams):
            planes = self._with_replicated(b, planes, prepared, streams, inward)
        joint = b.cast(self._attend(b, planes, streams, mask), "f32")
        outputs, replicated, begin = [], {}, 0
        for index, stream in enumerate(streams):
            end = begin + self._tokens_within(stream)
            output = b.slice(joint, 1, begin, end)
            begin = end
            if stream.replicated:
                replicated[index] = self._all_heads(b, output, inward, f"heads{index}")
            else:
                outputs.append(output)
        joint = b.concat(outputs, 1)
        shared = iter(heads_to_streams(b, outward, joint, self.axis, self.wire[-1]))
        whole = [replicated[i] if i in replicated else next(shared) for i in range(len(streams))]
        channels = inward.num_heads * inward.head_dim
        return [b.cast(b.reshape(x, (*x.shape[:2], channels)), b.activations) for x in whole]

    def _with_replicated(
        self,
        b: GraphBuilder,
        planes: Sequence[Tensor],
        prepared: Sequence[Planes],
        streams: Sequence[Stream],
        layout: SPAllToAll4DBatchLayout,
    ) -> list[Tensor]:
        """Put what this rank's heads have of streams that never travelled to their places in the joint sequence."""
        first = sum(layout.heads[: self.rank])
        joint = []
        for plane, of_sharded in enumerate(planes):
            parts, begin = [], 0
            for stream, own in zip(streams, prepared, strict=True):
                if stream.replicated:
                    parts.append(b.slice(own[plane], 2, first, first + layout.num_local_heads))
                else:
                    end = begin + self._tokens_within(stream)
                    parts.append(b.slice(of_sharded, 1, begin, end))
                    begin = end
            joint.append(b.concat([b.contiguous(part) for part in parts], 1))
        return joint

    def _all_heads(self, b: GraphBuilder, x: Tensor, layout: SPAllToAll4DBatchLayout, name: str) -> Tensor:
        """[B, S, H, D] of what each rank has of its own heads [B, S, h, D]."""
        batch, tokens, _, head_dim = x.shape
        rows = batch * tokens
        counts = [rows * heads * head_dim for heads in layout.heads]
        received = gathered(b, name, self, b.contiguous(x), counts)
        width = layout.num_heads * head_dim
        whole = b.empty((batch, tokens, layout.num_heads, head_dim), "heads")
        for peer, heads in enumerate(layout.heads):
            own = heads * head_dim
            part = b.view(received, (rows, own), (4 * own, 4), 4 * sum(counts[:peer]))
            whole = b.write(whole, part, (width, 1), sum(layout.heads[:peer]) * head_dim)
        return whole
