"""LoRA for a network that is about to be loaded: added to its weights, or kept apart beside its linear layers."""

from __future__ import annotations

from collections.abc import Callable

from edgedit.models.layers import Linear
from edgedit.models.module import Module
from edgedit.weights.deltas import Deltas, FactorSource, MergedSource
from edgedit.weights.lora_config import check_mode
from edgedit.weights.sources import TensorSource, Together

_WEIGHT = ".weight"


def adaptable(network: Module) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights that a LoRA may change."""
    return {
        name: parameter.shape
        for name, parameter in network.named_parameters()
        if parameter.role in ("linear", "conv", "patch") and name.endswith(_WEIGHT)
    }


def adapted(
    network: Module, source: TensorSource, deltas: Deltas, name_of: Callable[[str], str | None], mode: str
) -> TensorSource:
    """A source for `network` with deltas.

    merge  they are added to the weights
    apart  linear layers get adapters, which the source has factors for; to other weights, which stay f32, they are
           added

    ValueError for another mode.
    """
    check_mode(mode)
    if mode == "merge":
        return MergedSource(source, deltas, name_of)
    linears = {name: module for name, module in network.named_modules() if isinstance(module, Linear)}
    apart = [name for name in deltas if name.removesuffix(_WEIGHT) in linears]
    for name in apart:
        linears[name.removesuffix(_WEIGHT)].adapt(deltas.rank(name))
    merged = MergedSource(source, deltas.without(apart), name_of)
    factors = FactorSource(deltas, {name.removesuffix(_WEIGHT) + ".adapter": name for name in apart}, source.path)
    return Together([merged, factors])
