"""Stored weights to the type they are computed in, a bounded piece at a time."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedit.dtypes import bf16_to_f32
from edgedit.errors import CheckpointError
from edgedit.graph import _ggml
from edgedit.weights.checkpoint import FLOAT_TYPES
from edgedit.weights.fp8 import FP8_VALUES

if TYPE_CHECKING:
    from edgedit.weights.sources import TensorSource

PIECE_ELEMENTS = 1 << 22  # 16 MiB of f32: the temporary memory of a conversion
F16_MAX = 65504
AUTO = "auto"  # each weight as its source has it naturally
QUANTISED = ("q8_0", "q4_0", "q4_k", "q5_k", "q6_k")
COMPUTE_TYPES = ("f32", "f16", "bf16", *QUANTISED)
SHORT_BLOCKS = "q8_0"
_DEQUANTISE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def check_compute_dtype(dtype: str) -> str:
    """Return `dtype`, or raise `ValueError` listing the legal ones."""
    if dtype not in (AUTO, *COMPUTE_TYPES):
        raise ValueError(f"unknown compute dtype {dtype!r}; legal: {', '.join((AUTO, *COMPUTE_TYPES))}")
    return dtype


def main_dtype(source: TensorSource, dtype: str) -> str:
    """The type of most of the weights [N, K] of a source that is loaded as `dtype`: that one, unless it is AUTO."""
    if check_compute_dtype(dtype) != AUTO:
        return dtype
    counts: Counter[str] = Counter()
    for key in source:
        shape = source.shape(key)
        if len(shape) == 2:
            counts[source.natural_dtype(key)] += math.prod(shape)
    return counts.most_common(1)[0][0] if counts else "f32"


def fitting_type(shape: tuple[int, ...], dtype: str, cuts: tuple[int, ...] = ()) -> str:
    """`dtype`, or where the rows of a weight do not fill the blocks of a quantised type, q8_0 if they fill the shorter
    ones of that; f16 otherwise.

    `cuts` are places along a row at which it is taken apart; these too must be at the border of a block, and where
    they alone are not, it is f16.
    """

    def fills(quantised: str, *lengths: int) -> bool:
        return all(length % _ggml.block_size(quantised) == 0 for length in lengths)

    if fills(dtype, shape[-1], *cuts):
        return dtype
    return SHORT_BLOCKS if fills(SHORT_BLOCKS, shape[-1], *cuts) and not fills(dtype, shape[-1]) else "f16"


def is_quantised(stored: str) -> bool:
    """Whether a stored type is one of ggml's block types."""
    return stored.lower() in _ggml.QUANTISED_IDS


def check_weight_type(source: TensorSource, key: str) -> str:
    """The stored type of a tensor. Raises CheckpointError unless weights may have it."""
    stored = source.dtype(key)
    if stored not in FLOAT_TYPES and not is_quantised(stored):
        raise CheckpointError(
            f"{source.file(key)}: tensor {key!r} has type {stored}; weights may be {', '.join(FLOAT_TYPES)} "
            f"or one of ggml's quantised types"
        )
    return stored


def to_f32(values: np.ndarray, stored: str) -> np.ndarray:
    """Values as `TensorSource.read` gives them, in float32, blocks as [rows, elements]; F32 stays the same array."""
    if is_quantised(stored):
        return _dequantised(values, stored.lower())
    if stored in FP8_VALUES:
        return FP8_VALUES[stored][values]
    return bf16_to_f32(values) if stored == "BF16" else values.astype(np.float32, copy=False)


def scaled(values: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """f32 values times a factor as `TensorSource.scale` gives it; the same array where there is none."""
    return values if scale is None else values * scale


def num_columns(values: np.ndarray, stored: str) -> int:
    """Elements of a row of what `TensorSource.read` gives."""
    if not is_quantised(stored):
        return values.shape[-1] if values.ndim else 1
    block = _ggml.block_size(stored.lower())
    return values.shape[1] // _ggml.row_nbytes(stored.lower(), block) * block


def converted_pieces(
    values: np.ndarray,
    stored: str,
    target: str,
    name: str,
    workers: Executor,
    num_workers: int,
    scale: np.ndarray | None = None,
) -> Iterator[np.ndarray]:
    """Contiguous arrays whose bytes, one after the other, are `values` in ggml type `target`.

    Args:
        values, stored, scale: a tensor as a `TensorSource` gives it; may be a mapped file.
        target: a ggml type name; of the quantised ones only those whose block divides the last axis.
        name: for messages.
        workers, num_workers: threads that share the conversion of each piece.

    Raises:
        CheckpointError: if a value is beyond the range of f16, or not finite where blocks are quantised.
    """
    rows = values
    if values.ndim != 2:
        rows = values.reshape(-1, values.shape[-1] if values.ndim else 1) if values.size else values.reshape(0, 1)
    step = max(1, PIECE_ELEMENTS // max(1, num_columns(values, stored)))
    for start in range(0, len(rows), step):
        piece = slice(start, min(start + step, len(rows)))
        if stored.lower() == target and scale is None:
            yield np.ascontiguousarray(rows[piece])
            continue
        share = -(-(piece.stop - start) // num_workers)
        parts = [slice(begin, min(begin + share, piece.stop)) for begin in range(start, piece.stop, share)]
        yield from workers.map(
            lambda part: converted(rows[part], stored, target, name, part_of(scale, part)), parts
        )


def converted(
    values: np.ndarray, stored: str, target: str, name: str, scale: np.ndarray | None = None
) -> np.ndarray:
    """Rows of type `stored`, dense in ggml type `target`; arguments and errors as `converted_pieces`."""
    if stored.lower() == target and scale is None:
        return np.ascontiguousarray(values)
    return _encode(np.ascontiguousarray(scaled(to_f32(values, stored), scale)), target, name)


def part_of(scale: np.ndarray | None, rows: slice) -> np.ndarray | None:
    """The factor of some rows."""
    return scale if scale is None or scale.ndim == 1 else scale[rows]


def _dequantised(blocks: np.ndarray, dtype: str) -> np.ndarray:
    """f32 [rows, elements] of contiguous or strided blocks uint8 [rows, bytes]."""
    blocks = np.ascontiguousarray(blocks)
    values = np.empty((len(blocks), num_columns(blocks, dtype)), np.float32)
    to_float = _ggml.lib.ggml_get_type_traits(_ggml.TYPE_IDS[dtype]).contents.to_float
    ctypes.cast(to_float, _DEQUANTISE)(blocks.ctypes.data, values.ctypes.data, values.size)
    return values


def _encode(values: np.ndarray, target: str, name: str) -> np.ndarray:
    if target == "f32":
        return values
    if target == "bf16":
        bits = np.empty(values.shape, dtype=np.uint16)
        _ggml.lib.ggml_fp32_to_bf16_row(_floats(values), _pointer(bits, _ggml.lib.ggml_bf16_t), values.size)
        return bits
    if target == "f16":
        largest = np.abs(values).max()
        if largest > F16_MAX:
            raise CheckpointError(
                f"tensor {name!r} reaches {largest:.4g}, beyond the {F16_MAX} of f16; load it as bf16 or f32"
            )
        halves = np.empty(values.shape, dtype=np.float16)
        _ggml.lib.ggml_fp32_to_fp16_row(_floats(values), _pointer(halves, ctypes.c_uint16), values.size)
        return halves
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"tensor {name!r} has values that are not finite and cannot be quantised to {target}"
        )
    rows, columns = values.shape
    blocks = np.empty((rows, _ggml.row_nbytes(target, columns)), dtype=np.uint8)
    written = _ggml.lib.ggml_quantize_chunk(
        _ggml.TYPE_IDS[target], _floats(values), blocks.ctypes.data, 0, rows, columns, None
    )
    assert written == blocks.nbytes, f"{name}: {target} wrote {written} bytes for {blocks.nbytes}"
    return blocks


def _pointer(array: np.ndarray, ctype: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctype))


def _floats(array: np.ndarray) -> Any:
    return _pointer(array, ctypes.c_float)
