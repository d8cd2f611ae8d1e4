"""What a rank makes of its own tokens before keys and values travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.sequence import fused
from edgedit.sequence.strategy import Stream


@dataclass(frozen=True, slots=True)
class Prepared:
    """q and k are normed and rotated.

    q         [B, s, H, D] of all streams, of type `b.activations`
    own       k and v [2 * B, H, s, D] of the sharded streams, packed, in the type of the wire
    resident  the same of the replicated streams, of type `b.activations`; None where there are none
    """

    q: Tensor
    own: Tensor
    resident: Tensor | None


def prepare(b: GraphBuilder, streams: Sequence[Stream], wire_dtype: str, is_fused: bool) -> Prepared:
    sharded = [stream for stream in streams if not stream.replicated]
    replicated = [stream for stream in streams if stream.replicated]
    if is_fused:
        return Prepared(
            fused.queries(b, streams),
            fused.keys_and_values(b, sharded, wire_dtype),
            fused.keys_and_values(b, replicated, b.activations) if replicated else None,
        )
    planes = [(stream.replicated, *stream.prepared(b)) for stream in streams]

    def keys_and_values(resident: bool, dtype: str) -> Tensor:
        mine = [(k, v) for is_resident, _, k, v in planes if is_resident == resident]
        k, v = (_joint(b, plane) for plane in zip(*mine, strict=True))
        return b.cast(b.contiguous(b.permute(b.concat([k, v], 0), (0, 2, 1, 3))), dtype)

    return Prepared(
        b.cast(_joint(b, [q for _, q, _, _ in planes]), b.activations),
        keys_and_values(False, wire_dtype),
        keys_and_values(True, b.activations) if replicated else None,
    )


def _joint(b: GraphBuilder, planes: Sequence[Tensor]) -> Tensor:
    """[B, s, H, D] of each stream, one after another."""
    return b.concat([b.contiguous(x) for x in planes], 1)
