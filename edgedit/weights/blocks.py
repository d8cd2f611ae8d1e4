"""Weights of which every rank of a group keeps a share of the bytes, to be gathered block by block ahead of use.

Fully sharded residency, after ZeRO stage 3 [Rajbhandari et al. 2020] and FSDP [Zhao et al. 2023].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgedit.graph.tensor import WeightTensor
from edgedit.weights.forms import Form

if TYPE_CHECKING:
    from edgedit.graph.ops.collectives import Group
    from edgedit.models.module import Module, Parameter

ALIGNMENT = 64  # of each weight, and of each rank's share


@dataclass(frozen=True)
class Layout:
    """Where the weights of a block stand when all of it is there, and which of its bytes each rank keeps.

    offsets  name -> first byte
    counts   bytes of each rank, in the order of ranks; together the whole block
    """

    offsets: Mapping[str, int]
    counts: tuple[int, ...]
    rank: int

    @classmethod
    def of(cls, nbytes: Mapping[str, int], rank: int, size: int) -> Layout:
        """Of weights by their bytes, over `size` ranks."""
        offsets, end = {}, 0
        for name, length in nbytes.items():
            offsets[name] = end
            end += -(-length // ALIGNMENT) * ALIGNMENT
        base, extra = divmod(end // ALIGNMENT, size)
        return cls(offsets, tuple(ALIGNMENT * (base + (place < extra)) for place in range(size)), rank)

    @property
    def begin(self) -> int:
        """The first byte of the block that this rank keeps."""
        return sum(self.counts[: self.rank])

    @property
    def count(self) -> int:
        """Bytes that this rank keeps."""
        return self.counts[self.rank]

    def kept(self, name: str, nbytes: int) -> range:
        """Which bytes of a weight this rank keeps."""
        begin, offset = self.begin, self.offsets[name]
        low, high = (min(max(edge - offset, 0), nbytes) for edge in (begin, begin + self.count))
        return range(low, high)


class WeightBlock:
    """Weights that are used together, of which each rank of `group` keeps a share.

    While the weights are loaded, or outlined, `layout` says where they stand in the whole block, `shard` is this rank's
    share of its bytes, and the tensors of the parameters have no memory: a graph gives them some.
    """

    def __init__(self, name: str, group: Group, parameters: Mapping[str, Parameter]) -> None:
        self.name = name
        self.group = group
        self.parameters = parameters
        self.layout: Layout | None = None
        self.shard: WeightTensor | None = None

    @property
    def shard_name(self) -> str:
        return f"{self.name}.shard"


def shard_forms(module: Module, forms: Mapping[str, Form]) -> dict[str, Form]:
    """Of this rank's shares of a network's blocks, by name, once their weights' forms are known."""
    shards = {}
    for block in module.weight_blocks.values():
        nbytes = {name: forms[name].nbytes for name in block.parameters}
        block.layout = Layout.of(nbytes, block.group.rank, block.group.size)
        count = max(1, block.layout.count)  # a tensor needs a byte
        shards[block.shard_name] = Form((count,), "i8", count)
    return shards


def bind_shards(module: Module, pointers: Mapping[str, Any]) -> None:
    """Let the blocks of a network know the tensors of their shares."""
    for block in module.weight_blocks.values():
        assert block.layout is not None, f"block {block.name} has no layout"
        count = max(1, block.layout.count)
        block.shard = WeightTensor(pointers[block.shard_name], (count,), "i8", block.shard_name, count)
