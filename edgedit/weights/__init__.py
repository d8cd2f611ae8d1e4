"""Checkpoints: safetensors reader, loading with checks, conversion to the compute type."""

from __future__ import annotations

from edgedit._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "Checkpoint": "edgedit.weights.checkpoint",
        "SafetensorsFile": "edgedit.weights.safetensors",
        "WeightStore": "edgedit.weights.loader",
        "load": "edgedit.weights.loader",
    },
)
