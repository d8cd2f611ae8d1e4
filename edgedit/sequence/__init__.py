"""Sequence parallelism: how token streams are split over ranks and how attention sees all of them."""

from __future__ import annotations

from edgedit._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "AttentionStrategy": "edgedit.sequence.strategy",
        "Direction": "edgedit.sequence.layouts",
        "KVGather": "edgedit.sequence.kv_gather",
        "Local": "edgedit.sequence.local",
        "Ring": "edgedit.sequence.ring",
        "Rope": "edgedit.sequence.strategy",
        "SPAllToAll4DBatchLayout": "edgedit.sequence.layouts",
        "SPAllToAll4DLayout": "edgedit.sequence.layouts",
        "SPSequenceSplit": "edgedit.sequence.split",
        "Stream": "edgedit.sequence.strategy",
        "USP": "edgedit.sequence.usp",
        "Ulysses": "edgedit.sequence.ulysses",
        "strategy_for": "edgedit.sequence.choice",
    },
)
