"""Linear layers with given values, loaded as models load theirs, and what those values are worth in a type."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from pathlib import Path

import numpy as np

from edgedit.graph._ggml import TYPE_IDS, lib
from edgedit.kernels import chosen, multiplies_bf16
from edgedit.models.layers import Linear
from edgedit.weights.convert import converted
from edgedit.weights.loader import WeightStore, load
from edgedit.weights.sources import TensorSource

# Of results with f16 weights: kernels that multiply bf16 keep eight of their eleven bits.
F16_TOLERANCE = 3e-2 if multiplies_bf16(chosen("auto")) else 5e-3
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k")


class Values(TensorSource):
    """These arrays."""

    path = Path("values")

    def __init__(self, **values: np.ndarray) -> None:
        self._values = values

    def _named(self) -> Collection[str]:
        return self._values

    def shape(self, key: str) -> tuple[int, ...]:
        return self._values[key].shape

    def dtype(self, key: str) -> str:
        return "F32"

    def read(self, key: str) -> np.ndarray:
        return self._values[key]


def linear_layer(
    weight: np.ndarray, bias: np.ndarray | None, dtype: str, kernels: str
) -> tuple[Linear, WeightStore]:
    """The layer, and what owns its memory."""
    layer = Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    values = {"weight": weight} | ({} if bias is None else {"bias": bias})
    return layer, load(layer, Values(**values), dtype, kernels=kernels)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values [N, K] after a way through a type, by ggml's own conversions; f64."""
    if dtype == "f32":
        return values.astype(np.float64)
    blocks = converted(values, "F32", dtype, "test")
    result = np.empty(values.shape, np.float32)
    to_float = lib.ggml_get_type_traits(TYPE_IDS[dtype]).contents.to_float
    decode = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        ctypes.cast(to_float, ctypes.c_void_p).value
    )
    decode(blocks.ctypes.data, result.ctypes.data, result.size)
    return result.astype(np.float64)
