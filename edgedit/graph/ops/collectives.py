"""Collectives as nodes of a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.collective import Collective
from edgedit.graph.native import COLLECTIVE_PLACEHOLDER
from edgedit.graph.ops.checks import require
from edgedit.graph.ops.image import ImageOps
from edgedit.graph.tensor import Tensor, ne_of, tensor_array
from edgedit.parallel.split import array_split


class Group(Protocol):
    """Who takes part: what a graph needs to know of a process group."""

    @property
    def name(self) -> str:
        """The mesh axis."""

    @property
    def rank(self) -> int:
        """This rank's place in the group."""

    @property
    def size(self) -> int:
        """Ranks in the group."""


class CollectiveOps(ImageOps):
    """The builder knows nothing of ranks: whoever adds a collective says who takes part and what is exchanged."""

    def __init__(self, name: str = "graph", ops: str = "auto", **choices: str) -> None:
        super().__init__(name, ops, **choices)
        self.collectives: list[Collective] = []

    def all_gather(self, name: str, x: Tensor, group: Group, counts: Sequence[int] | None = None) -> Tensor:
        """Every rank's x, one after another along axis 0; `counts` are their lengths where they differ."""
        lengths = [x.shape[0]] * group.size if counts is None else list(counts)
        require(
            lengths[group.rank] == x.shape[0],
            "all_gather",
            f"counts {lengths} do not fit rank {group.rank}",
            x,
        )
        row = math.prod(x.shape[1:])
        return self.collective(
            "all_gather",
            name,
            group.name,
            x,
            (sum(lengths), *x.shape[1:]),
            [x.count] * group.size,
            [length * row for length in lengths],
            group.rank,
        )

    def all_reduce(self, name: str, x: Tensor, group: Group, op: str = "sum") -> Tensor:
        """The sum (or max, min) of every rank's x, added in rank order: the same bits on every rank."""
        shares = array_split(x.count, group.size)
        return self.collective("all_reduce", name, group.name, x, x.shape, shares, shares, group.rank, op)

    def all_to_all(
        self, name: str, x: Tensor, group: Group, send_counts: Sequence[int], recv_counts: Sequence[int]
    ) -> Tensor:
        """Consecutive runs of x [n] go to the ranks of the group; what comes from them is [sum of recv_counts]."""
        require(sum(send_counts) == x.count, "all_to_all", f"counts {list(send_counts)} do not add up", x)
        shape = (sum(recv_counts),)
        return self.collective("all_to_all", name, group.name, x, shape, send_counts, recv_counts, group.rank)

    def broadcast(self, name: str, x: Tensor, group: Group) -> Tensor:
        """x of the group's rank 0."""
        counts = [x.count] * group.size
        return self.collective("broadcast", name, group.name, x, x.shape, counts, counts, group.rank)

    def collective(
        self,
        kind: str,
        name: str,
        axis: str,
        send: Tensor,
        recv_shape: tuple[int, ...],
        send_counts: Sequence[int],
        recv_counts: Sequence[int],
        rank: int,
        reduce_op: str | None = None,
        total_count: int | None = None,
        ops: str = "generic",
        after: Tensor | None = None,
    ) -> Tensor:
        """Add a collective over the group of mesh axis `axis` and return the tensor it receives.

        `send` must be contiguous; counts are in elements, one per rank of the group; `rank` is this rank's place
        in it; `total_count` is what all ranks of an all_to_all contribute together; `ops` says what fills the buffers;
        `after` is what must be computed before the collective starts, although it is not sent.

        Two nodes are added: *start*, whose result is the receive buffer, and *wait*, a view of it that also
        depends on `send`, so that ggml's allocator keeps both apart while the collective is in flight. A receive
        buffer has at least one element, so that a rank that receives nothing still takes part.
        """
        name = self._qualified(name)
        require(send.is_contiguous, kind, "the send tensor must be contiguous", send)
        received = math.prod(recv_shape)
        fits = received == (recv_counts[0] if kind == "broadcast" else sum(recv_counts))
        require(fits, kind, f"counts {list(recv_counts)} do not add up to {list(recv_shape)}", send)
        index = len(self.collectives)
        type_id = _ggml.TYPE_IDS[send.dtype]
        count = max(1, received)
        start = self._emit(
            lib.ggml_custom_4d(
                self._context,
                type_id,
                *ne_of((count,)),
                tensor_array(send),
                1,
                COLLECTIVE_PLACEHOLDER,
                1,
                None,
            ),
            (count,),
            f"{kind}.start",
            after=() if after is None or after.node is None else (after.node,),
            collective=index,
        )
        wait = self._emit(
            lib.ggml_custom_inplace(
                self._context, start.pointer, tensor_array(send), 1, COLLECTIVE_PLACEHOLDER, 1, None
            ),
            (count,),
            f"{kind}.wait",
            collective=index,
        )
        assert send.node is not None and start.node is not None and wait.node is not None
        self.collectives.append(
            Collective(
                kind=kind,
                name=name,
                axis=axis,
                dtype=send.dtype,
                send=send.node,
                start=start.node,
                wait=wait.node,
                send_counts=tuple(send_counts),
                recv_counts=tuple(recv_counts),
                rank=rank,
                reduce_op=reduce_op,
                total_count=total_count,
                ops=ops,
                kernels=self.kernels,
            )
        )
        return self.reshape(self.slice(wait, 0, 0, received), recv_shape)
