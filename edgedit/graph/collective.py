"""A collective of a graph: what is exchanged with whom, and which nodes start it and wait for it."""

from __future__ import annotations

from dataclasses import dataclass

from edgedit.dtypes import itemsize

KINDS = ("all_to_all", "all_gather", "all_reduce", "broadcast", "ring_shift")


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as rank `rank` of its group sees it. Counts are in elements, one per rank of the group.

    The *start* node reads the send tensor (`inputs=(send,)`) and owns the receive storage; the *wait* node
    is a view of start that also reads the send tensor (`inputs=(start, send)`, `base=start`), which keeps it
    alive until then.

    Counts by kind:
      all_to_all  send_counts[p] go to p, recv_counts[p] come from p
      ring_shift  the same; only the count to the next and from the previous rank are not 0
      all_gather  send_counts is the own count, repeated; recv_counts[p] comes from p
      all_reduce  send_counts = recv_counts = the chunk that each rank sums; together the whole tensor
      broadcast   send_counts = recv_counts = the whole count, repeated; rank 0 is the root

    ops tells the nodes around it apart, generic or fused, and what these put on the wire; kernels is the family that
    computes what is exchanged. Ranks must agree on both.

    total_count is the number of elements that all ranks contribute together. It is the same on every rank
    even where shards are uneven, so it stands in the signature. An all_to_all cannot derive it from what one
    rank knows: give it (for Ulysses: planes x batch x tokens x heads x head dim), or the signature goes
    without.
    """

    kind: str
    name: str
    axis: str
    dtype: str
    send: int
    start: int
    wait: int
    send_counts: tuple[int, ...]
    recv_counts: tuple[int, ...]
    rank: int
    reduce_op: str | None = None
    total_count: int | None = None
    ops: str = "generic"
    kernels: str = "ggml"

    @property
    def size(self) -> int:
        """Ranks in the group."""
        return len(self.send_counts)

    @property
    def bytes_per_peer(self) -> tuple[int, ...]:
        """Payload that this rank sends to each rank of the group; 0 to itself."""
        width = itemsize(self.dtype)
        return tuple(0 if peer == self.rank else self._count_to(peer) * width for peer in range(self.size))

    @property
    def bytes_sent(self) -> int:
        """Payload that this rank sends to all others."""
        return sum(self.bytes_per_peer)

    def _count_to(self, peer: int) -> int:
        if self.kind == "broadcast":
            return self.send_counts[peer] if self.rank == 0 else 0
        if self.kind == "all_reduce":
            # Each rank sums one chunk in rank order: raw chunks go to their owners, the own sum to everybody.
            return self.send_counts[peer] + self.send_counts[self.rank]
        return self.send_counts[peer]

    @property
    def global_count(self) -> int | None:
        """Elements that all ranks contribute, equal on all of them; None where a rank cannot know it."""
        if self.total_count is not None:
            return self.total_count
        if self.kind == "all_gather":
            return sum(self.recv_counts)
        if self.kind == "all_reduce":
            return sum(self.send_counts) * self.size
        if self.kind == "broadcast":
            return self.send_counts[0]
        return None

    @property
    def mean_nbytes_sent(self) -> float | None:
        """Bytes sent per rank on average, equal on all of them; None where a rank cannot know it."""
        if self.global_count is None:
            return None
        peers = self.size - 1
        # How often an element of the global count leaves the rank that contributes it.
        copies = {
            "all_to_all": peers / self.size,
            "all_gather": peers,
            "all_reduce": 2 * peers / self.size,
            "broadcast": peers,
            "ring_shift": 1,
        }[self.kind]
        return self.global_count * itemsize(self.dtype) * copies / self.size

    @property
    def signature(self) -> str:
        """The line that all ranks of the group must agree on. Holds no position and no rank-local count."""
        kind = f"{self.kind}({self.reduce_op})" if self.reduce_op else self.kind
        count = "?" if self.global_count is None else self.global_count
        line = f"{kind} {self.name} axis={self.axis} size={self.size} dtype={self.dtype} count={count}"
        line = line if self.ops == "generic" else f"{line} ops={self.ops}"
        return line if self.kernels == "ggml" else f"{line} kernels={self.kernels}"
