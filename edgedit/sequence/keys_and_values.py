"""What ring attention and gathered keys and values have in common: queries stay with their rank, to which the keys and
values of all ranks come."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.sequence.local import Local
from edgedit.sequence.masks import QUERIES, part_of, ranges_of, whole_mask
from edgedit.sequence.sharded import Sharded, taken_apart, without_padding
from edgedit.sequence.split import SPSequenceSplit
from edgedit.sequence.strategy import Stream
from edgedit.sequence.wire import check_wire

PLANES = 2  # k, v


class KeysAndValues(Sharded):
    """Over the `degree` ranks of mesh axis `AXIS`, of which this is number `rank`.

    wire_dtype  type of k and v on the wire
    mode        how tokens are shared, see SPSequenceSplit; padding stays at home
    """

    AXIS: ClassVar[str]

    def __init__(self, degree: int, rank: int, wire_dtype: str = "f32", mode: str = "uneven") -> None:
        super().__init__(degree, rank, self.AXIS, mode)
        self.wire_dtype = check_wire(wire_dtype)

    def attention(
        self, b: GraphBuilder, streams: Sequence[Stream], mask: Tensor | None = None
    ) -> list[Tensor]:
        if all(stream.replicated for stream in streams):
            return Local().attention(b, streams, mask)
        shares = [self.share(stream.length) for stream in streams]
        held = [without_padding(b, stream, share) for stream, share in zip(streams, shares, strict=True)]
        mask = part_of(b, whole_mask(b, mask, held), QUERIES, ranges_of(held, shares, self.rank))
        return taken_apart(b, self._attend(b, held, shares, mask), held, shares)

    @abstractmethod
    def _attend(
        self,
        b: GraphBuilder,
        streams: Sequence[Stream],
        shares: Sequence[SPSequenceSplit],
        mask: Tensor | None,
    ) -> Tensor:
        """Outputs [B, s, H * D] of this rank's queries, all streams side by side.

        streams  without padding; not all are replicated
        mask     of this rank's queries and all keys
        """
