"""Activations in the type in which they travel between ranks.

Beside plain types there is q8_0 of ggml: 8 bits a value, and for each 32 values of a head's row a scale in f16, the
largest of them by 127. Collectives carry it as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedit.config import WIRE_BLOCKS
from edgedit.graph import _ggml
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor

WIRE_DTYPES = ("f32", "f16", "bf16", "q8_0")


def count_on_wire(dtype: str, values: int) -> int:
    """Elements of what travels for so many values, whole blocks of them: bytes for a type of blocks."""
    return _ggml.row_nbytes(dtype, values) if dtype in WIRE_BLOCKS else values


def to_wire(b: GraphBuilder, x: Tensor, dtype: str) -> Tensor:
    """x, which is packed, as it travels; of a type of blocks, [bytes]."""
    x = b.cast(x, dtype)
    return b.reinterpret(x, "i8", (count_on_wire(dtype, x.count),)) if dtype in WIRE_BLOCKS else x


def from_wire(b: GraphBuilder, x: Tensor, dtype: str, shape: Sequence[int]) -> Tensor:
    """What has travelled as a tensor of this shape: f32 where it came in blocks, else of the wire's type."""
    if dtype in WIRE_BLOCKS:
        return b.cast(b.reinterpret(x, dtype, tuple(shape)), "f32")
    return x if x.shape == tuple(shape) else b.reshape(x, tuple(shape))


def check_wire(wire_dtype: str) -> str:
    """ValueError for a type that is none."""
    if wire_dtype not in WIRE_DTYPES:
        raise ValueError(f"wire dtype {wire_dtype!r} is none of {', '.join(WIRE_DTYPES)}")
    return wire_dtype
