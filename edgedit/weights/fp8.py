"""The two 8-bit floating types of checkpoints [Micikevicius et al. 2022, "FP8 formats for deep learning"]."""

from __future__ import annotations

import numpy as np


def _decoded(exponent_bits: int, mantissa_bits: int, has_infinity: bool) -> np.ndarray:
    """f32 values of the 256 codes."""
    codes = np.arange(256)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    fraction = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    normal = (1 + fraction) * 2.0 ** (exponent - bias)
    values = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal)
    if has_infinity:
        values[exponent == (1 << exponent_bits) - 1] = np.nan
        values[(exponent == (1 << exponent_bits) - 1) & (fraction == 0)] = np.inf
    else:
        values[(codes & 0x7F) == 0x7F] = np.nan
    return (sign * values).astype(np.float32)


FP8_VALUES = {"F8_E4M3": _decoded(4, 3, False), "F8_E5M2": _decoded(5, 2, True)}
