"""The safetensors container, written as a stream."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import BinaryIO

import numpy as np

ITEMSIZE = {"F32": 4, "F16": 2, "BF16": 2}


def header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, int]:
    """The first bytes of a file of tensors, each given by its type and shape, and the size of the whole file."""
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + ITEMSIZE[dtype] * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, 8 + len(text) + end


def write(
    file: BinaryIO, tensors: Mapping[str, tuple[str, tuple[int, ...]]], contents: Iterable[np.ndarray]
) -> None:
    """Write a file: its header, then arrays whose bytes, one after the other, are all tensors (bf16 as its bits)."""
    file.write(header(tensors)[0])
    for values in contents:
        file.write(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes())
