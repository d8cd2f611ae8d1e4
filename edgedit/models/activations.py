"""Activation functions by the names that configs use."""

from __future__ import annotations

from typing import Any

# name in a config -> name in a graph (graph/ops/elementwise.py)
ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "quick_gelu": "gelu_quick",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def check_activation(field: str, name: Any) -> None:
    """Raise ValueError, naming the config's field and what is legal, unless `name` is supported."""
    if name not in ACTIVATIONS:
        raise ValueError(f"{field}={name!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
