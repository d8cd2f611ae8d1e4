"""Weights that do not fit one rank: every rank keeps a share of each block's, and gathers a block ahead of its use.

Only the large weights of layers are kept so; norms, biases, embeddings, first and last layers are whole everywhere. The
ranks of a group must run the same blocks in the same order, as often as each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.ops.collectives import Group
from edgedit.graph.tensor import Tensor
from edgedit.models.module import Module, Parameter
from edgedit.weights.blocks import WeightBlock


def keep_shares(network: Module, readers: Iterable[tuple[str, Module]], group: Group) -> None:
    """Let each rank of a group keep a share of the weights of some modules; nothing for a group of one.

    readers  modules with their names, which are their parameters' prefixes; a module inside another comes before it
    """
    if group.size == 1:
        return
    taken: set[Parameter] = set()
    blocks = {}
    for name, reader in readers:
        own = {key: p for key, p in reader.named_parameters(f"{name}.") if _is_large(p) and p not in taken}
        taken.update(own.values())
        blocks[reader] = WeightBlock(name, group, own)
    network.weight_blocks = blocks


def _is_large(parameter: Parameter) -> bool:
    return parameter.role == "linear" and len(parameter.shape) == 2


class WeightsAhead:
    """The weights of `readers`, modules that a graph runs in this order, where ranks keep shares of them.

    While a module runs, the weights of the next are on their way; those of no third one are there.
    """

    def __init__(self, b: GraphBuilder, network: Module, readers: Sequence[Module]) -> None:
        self._b = b
        self._waiting = self._blocks(network, readers)
        self._coming: list[Module] = []

    @staticmethod
    def _blocks(network: Module, readers: Sequence[Module]) -> Iterator[tuple[Module, WeightBlock]]:
        return ((reader, network.weight_blocks[reader]) for reader in readers if reader in network.weight_blocks)

    def ready(self, reader: Module, *inputs: Tensor) -> None:
        """Make the weights of a module usable. Called before it is built, with what the module before it has made."""
        for _ in range(2 if not self._coming else 1):
            following = next(self._waiting, None)
            if following is None:
                break
            module, block = following
            self._gather(block, inputs)
            self._coming.append(module)
        if self._coming:
            first = self._coming.pop(0)
            assert first is reader, f"weights of {type(first).__name__} come before those of {type(reader).__name__}"

    def _gather(self, block: WeightBlock, inputs: Sequence[Tensor]) -> None:
        layout, shard = block.layout, block.shard
        assert layout is not None and shard is not None, f"block {block.name} has no weights yet"
        tensors = {name: parameter.tensor for name, parameter in block.parameters.items()}
        weights = [(tensor, layout.offsets[name]) for name, tensor in tensors.items() if tensor is not None]
        self._b.gather_weights(block.name, shard, block.group, layout.counts, weights, inputs)
