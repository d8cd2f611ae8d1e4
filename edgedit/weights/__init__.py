"""Checkpoints: safetensors reader, name maps, conversion to the compute type."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_EXPORTS = {
    "Checkpoint": "edgedit.weights.checkpoint",
    "SafetensorsFile": "edgedit.weights.safetensors",
    "WeightStore": "edgedit.weights.loader",
    "load": "edgedit.weights.loader",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
