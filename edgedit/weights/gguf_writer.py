"""Writes the GGUF container (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), version 3, as a stream.

All sizes are known before the first byte is written: `Layout` plans the file, `write` fills it tensor by tensor.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from edgedit.errors import CheckpointError
from edgedit.graph import _ggml
from edgedit.weights.gguf_header import DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS

if TYPE_CHECKING:
    import numpy as np

VERSION = 3
MAX_NAME_NBYTES = 63  # what ggml's own reader takes
_UINT32, _STRING = 4, 8  # the format's numbers of value types

Value = int | str


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of the file: its shape in numpy order and its ggml type, such as "q4_k"."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        nbytes = _ggml.row_nbytes(self.dtype, self.shape[-1] if self.shape else 1)
        for size in self.shape[:-1]:
            nbytes *= size
        return nbytes


class Layout:
    """Where everything stands: `header` are the file's first bytes, `nbytes` its size.

    Raises CheckpointError for tensors that the format cannot hold: more than 4 axes, or a name that is too long.
    """

    def __init__(self, metadata: Mapping[str, Value], tensors: Sequence[PlannedTensor]) -> None:
        self.tensors = tuple(tensors)
        infos, offset = [], 0
        for tensor in tensors:
            name = tensor.name.encode()
            if len(name) > MAX_NAME_NBYTES or len(tensor.shape) > MAX_DIMS:
                raise CheckpointError(
                    f"tensor {tensor.name!r} {list(tensor.shape)} does not fit a GGUF file, whose tensors have names "
                    f"of at most {MAX_NAME_NBYTES} bytes and at most {MAX_DIMS} axes"
                )
            ne = tensor.shape[::-1] or (1,)
            infos.append(
                _string(name)
                + struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
                + struct.pack("<IQ", _ggml.TYPE_IDS[tensor.dtype], offset)
            )
            offset += _aligned(tensor.nbytes)
        pairs = [_string(key.encode()) + _value(value) for key, value in metadata.items()]
        start = MAGIC + struct.pack("<IQQ", VERSION, len(infos), len(pairs))
        header = b"".join((start, *pairs, *infos))
        self.header = header.ljust(_aligned(len(header)), b"\0")
        self.nbytes = len(self.header) + offset


def write(file: BinaryIO, layout: Layout, contents: Iterable[Iterable[np.ndarray]]) -> None:
    """Write the header, then of each tensor the contiguous arrays whose bytes, one after the other, are its values."""
    file.write(layout.header)
    for tensor, pieces in zip(layout.tensors, contents, strict=True):
        written = 0
        for piece in pieces:
            file.write(piece.data.cast("B") if piece.size else b"")
            written += piece.nbytes
        assert written == tensor.nbytes, f"{tensor.name}: {written} bytes for {tensor.nbytes}"
        file.write(bytes(_aligned(written) - written))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _value(value: Value) -> bytes:
    """A metadata value behind its type."""
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    return struct.pack("<I", _STRING) + _string(value.encode())
