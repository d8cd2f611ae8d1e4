"""The arithmetic of `all_reduce`: in rank order, so that every backend gives every rank the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedit import dtypes

if TYPE_CHECKING:
    import numpy


def ordered_reduce(parts: numpy.ndarray, dtype: str, op: str) -> numpy.ndarray:
    """Reduce `parts` [P, n] over P in order; returns [n] of the same dtype. 16-bit floats go through f32."""
    import numpy

    combine = {"sum": numpy.add, "max": numpy.maximum, "min": numpy.minimum}[op]
    if dtype == "bf16":
        parts = dtypes.bf16_to_f32(parts)
    elif dtype == "f16":
        parts = parts.astype(numpy.float32)
    total = parts[0].copy()
    for part in parts[1:]:
        combine(total, part, out=total)
    if dtype == "bf16":
        return dtypes.f32_to_bf16(total)
    return total.astype(numpy.float16) if dtype == "f16" else total
