"""Stored weights to the type they are computed in, a bounded piece at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

import numpy as np

from edgedit.dtypes import bf16_to_f32
from edgedit.errors import CheckpointError
from edgedit.graph import _ggml

PIECE_ELEMENTS = 1 << 22  # 16 MiB of f32: the temporary memory of a conversion
F16_MAX = 65504
QUANTISED = ("q8_0", "q4_0", "q4_k", "q5_k", "q6_k")
COMPUTE_TYPES = ("f32", "f16", "bf16", *QUANTISED)
_SAME_BITS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


def check_compute_dtype(dtype: str) -> str:
    """Return `dtype`, or raise `ValueError` listing the legal ones."""
    if dtype not in COMPUTE_TYPES:
        raise ValueError(f"unknown compute dtype {dtype!r}; legal: {', '.join(COMPUTE_TYPES)}")
    return dtype


def fitting_type(shape: tuple[int, ...], dtype: str) -> str:
    """`dtype`, or f16 where the rows of a weight do not fill the blocks of a quantised type."""
    return dtype if shape[-1] % _ggml.block_size(dtype) == 0 else "f16"


def to_f32(values: np.ndarray, stored: str) -> np.ndarray:
    """Values of a safetensors type (bf16 as uint16 bits) as float32; F32 stays the same array."""
    return bf16_to_f32(values) if stored == "BF16" else values.astype(np.float32, copy=False)


def converted_pieces(
    values: np.ndarray, stored: str, target: str, name: str, workers: Executor, num_workers: int
) -> Iterator[np.ndarray]:
    """Contiguous arrays whose bytes, one after the other, are `values` in ggml type `target`.

    Args:
        values: the tensor, any shape; may be a mapped file.
        stored: its safetensors type: F64, F32, F16 or BF16.
        target: a ggml type name; of the quantised ones only those whose block divides the last axis.
        name: for messages.
        workers, num_workers: threads that share the conversion of each piece.

    Raises:
        CheckpointError: if a value is beyond the range of f16, or not finite where blocks are quantised.
    """
    columns = values.shape[-1] if values.ndim else 1
    rows = values.reshape(-1, columns) if values.size else values.reshape(0, 1)
    step = max(1, PIECE_ELEMENTS // max(1, columns))
    for start in range(0, len(rows), step):
        piece = rows[start : start + step]
        if _SAME_BITS.get(stored) == target:
            yield np.ascontiguousarray(piece)
            continue
        share = -(-len(piece) // num_workers)
        shares = [piece[begin : begin + share] for begin in range(0, len(piece), share)]
        yield from workers.map(lambda part: converted(part, stored, target, name), shares)


def converted(values: np.ndarray, stored: str, target: str, name: str) -> np.ndarray:
    """Rows of safetensors type `stored`, dense in ggml type `target`; arguments and errors as `converted_pieces`."""
    if _SAME_BITS.get(stored) == target:
        return np.ascontiguousarray(values)
    return _encode(np.ascontiguousarray(to_f32(values, stored)), target, name)


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
