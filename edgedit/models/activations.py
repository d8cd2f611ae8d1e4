"""Activation functions by the names that configs use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor

ACTIVATIONS: dict[str, Callable[[GraphBuilder, Tensor], Tensor]] = {
    "gelu": GraphBuilder.gelu_erf,
    "gelu_new": GraphBuilder.gelu,
    "gelu_pytorch_tanh": GraphBuilder.gelu,
    "quick_gelu": GraphBuilder.gelu_quick,
    "relu": GraphBuilder.relu,
    "silu": GraphBuilder.silu,
    "swish": GraphBuilder.silu,
}


def check_activation(field: str, name: Any) -> None:
    """Raise ValueError, naming the config's field and what is legal, unless `name` is supported."""
    if name not in ACTIVATIONS:
        raise ValueError(f"{field}={name!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
