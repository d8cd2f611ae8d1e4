"""A deep network told from shallow ones: its blocks are alike, so costs add up block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from edgedit.models.flux import FluxConfig
from edgedit.models.sd3 import SD3Config

_FEW = 4  # so many blocks are looked at as they are


def shallow_configs(config: Any) -> list[tuple[int, Any]]:
    """Configs of few blocks with a weight each: what adds up over blocks is, for `config`, the weighted sum.

    The first one has a block of every kind and each other one has two of one kind, whose difference to the first is
    that of one block.
    """
    counts, made = _kinds(config)
    if sum(counts.values()) <= _FEW:
        return [(1, config)]
    one = {kind: min(count, 1) for kind, count in counts.items()}
    more = {kind: count - 1 for kind, count in counts.items() if count > 1}
    first = [(1 - sum(more.values()), made(one))]
    return first + [(weight, made({**one, kind: 2})) for kind, weight in more.items()]


def _kinds(config: Any) -> tuple[dict[str, int], Callable[[Mapping[str, int]], Any]]:
    """How many blocks of each kind a config has, and how to make one of such counts."""
    if isinstance(config, FluxConfig):
        names = ("num_layers", "num_single_layers")
        return {name: getattr(config, name) for name in names}, lambda counts: replace(config, **counts)
    assert isinstance(config, SD3Config), f"{type(config).__name__} has no shallow form"
    last = config.num_layers - 1  # of a kind of its own
    dual = [layer for layer in config.dual_attention_layers if layer != last]
    is_last_dual = last in config.dual_attention_layers

    def made(counts: Mapping[str, int]) -> SD3Config:
        layers = counts["dual"] + counts["plain"]
        duals = (*range(counts["dual"]), *([layers] if is_last_dual else []))
        return replace(config, num_layers=layers + 1, dual_attention_layers=duals)

    return {"dual": len(dual), "plain": last - len(dual)}, made
