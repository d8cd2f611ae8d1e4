"""Weights that a graph gathers from the ranks that keep shares of them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.ops.collectives import CollectiveOps, Group
from edgedit.graph.tensor import Tensor, WeightTensor, ne_of


class GatheredOps(CollectiveOps):
    def gather_weights(
        self,
        name: str,
        shard: WeightTensor,
        group: Group,
        counts: Sequence[int],
        weights: Iterable[tuple[WeightTensor, int]],
        after: Sequence[Tensor] = (),
    ) -> None:
        """Let `parameter` give weights whose bytes are gathered here, from the `shard` of every rank of a group.

        counts   bytes that each rank has
        weights  and where each begins in the bytes of all ranks together
        after    what must have been computed before the exchange begins
        """
        own = counts[group.rank]
        with self.scope(name):
            view = lib.ggml_view_1d(self._context, self.parameter(shard).pointer, shard.nbytes, 0)
            nodes = tuple(dict.fromkeys(x.node for x in after if x.node is not None))
            send = self._emit(view, (shard.nbytes,), "shard", after=nodes)
            received = self.collective(
                "all_gather",
                "weights",
                group.name,
                send,
                (sum(counts),),
                [own] * group.size,
                counts,
                group.rank,
            )
            for weight, offset in weights:
                self._parameters[ctypes.addressof(weight.pointer.contents)] = self._seen_as(
                    received, weight, offset
                )

    def _seen_as(self, received: Tensor, weight: WeightTensor, offset: int) -> Tensor:
        """The received bytes from `offset` on as a tensor like `weight`; ggml has no node of its own that does this."""
        shape = (weight.nbytes,) if weight.packed else weight.shape
        type_id = _ggml.TYPE_IDS["i8" if weight.packed else weight.dtype]
        pointer = lib.ggml_new_tensor_4d(self._context, type_id, *ne_of(shape))
        tensor = pointer.contents
        tensor.op = lib.GGML_OP_VIEW
        tensor.src[0] = received.pointer
        tensor.view_src = received.pointer.contents.view_src
        tensor.view_offs = received.pointer.contents.view_offs + offset
        seen = self._emit(pointer, shape, weight.name)
        return Tensor(
            pointer, weight.shape, weight.dtype, weight.name, seen.node, weight.packed, is_gathered=True
        )
