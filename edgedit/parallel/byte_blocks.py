"""A data movement as native transports take it: per peer, which bytes go and where those that come belong."""

from __future__ import annotations

from collections.abc import Sequence

ByteBlock = tuple[int, int, int, int]
"""Offset and count in the send buffer, offset and count in the receive buffer."""


def byte_blocks(
    itemsize: int, send_counts: Sequence[int], send_offsets: Sequence[int], recv_counts: Sequence[int]
) -> list[ByteBlock]:
    """Blocks of an all-to-all or all-gather from counts and offsets in elements; what comes stands in peer order."""
    return [
        (offset * itemsize, sent * itemsize, sum(recv_counts[:peer]) * itemsize, received * itemsize)
        for peer, (offset, sent, received) in enumerate(
            zip(send_offsets, send_counts, recv_counts, strict=True)
        )
    ]


def broadcast_blocks(nbytes: int, size: int, rank: int, root: int) -> list[ByteBlock]:
    """Blocks of a broadcast in place: everything goes from the root to everybody, the root included."""
    outgoing = nbytes if rank == root else 0
    return [(0, outgoing, 0, nbytes if peer == root else 0) for peer in range(size)]
