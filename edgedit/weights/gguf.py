"""Memory-mapped reader of one GGUF file.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, number of tensors and of
metadata entries, the entries, one description per tensor, and behind an alignment the data. Every count, length and
offset is compared with the size of the file before anything is made of it, so that a damaged or hostile file ends in
a `CheckpointError` that names it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgedit.errors import CheckpointError
from edgedit.graph._ggml import QUANTISED_IDS, lib
from edgedit.weights.gguf_header import MAGIC, Header, TensorInfo, read_header
from edgedit.weights.safetensors import NUMPY_TYPE
from edgedit.weights.sources import TensorSource

# What ggml's plain types are called in safetensors. Those that it quantises keep its own names.
PLAIN_TYPES = {
    lib.GGML_TYPE_F32: "F32",
    lib.GGML_TYPE_F16: "F16",
    lib.GGML_TYPE_BF16: "BF16",
    lib.GGML_TYPE_F64: "F64",
    lib.GGML_TYPE_I8: "I8",
    lib.GGML_TYPE_I16: "I16",
    lib.GGML_TYPE_I32: "I32",
    lib.GGML_TYPE_I64: "I64",
}
FLOATS = ("f32", "f16", "bf16")
# ggml tensors have at most four axes and lose leading ones of length one; writers note the shape under this key.
ORIGINAL_SHAPE = "comfy.gguf.orig_shape."


@dataclass(frozen=True, slots=True)
class GgufEntry:
    """One tensor; `begin` and `end` are byte offsets from the start of the file, `dtype` as a TensorSource has it.

    columns  of the rows in which it stands, which are not those of its shape where a convolution is quantised
    """

    name: str
    dtype: str
    type_id: int
    shape: tuple[int, ...]
    begin: int
    end: int
    columns: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


class GgufFile(TensorSource):
    """A validated, memory-mapped GGUF file.

    Raises:
        CheckpointError: if the file is missing, truncated, malformed, or holds a type that ggml does not know.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_file():
            raise CheckpointError(f"{self.path}: is no regular file")
        try:
            nbytes = self.path.stat().st_size
            self._map = np.memmap(self.path, np.uint8, "r") if nbytes else np.empty(0, np.uint8)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error.strerror}") from error
        header = read_header(self._map, self.path)
        self.metadata = header.metadata
        entries = [_entry(info, header, len(self._map), self.path) for info in header.tensors]
        _check_apart(entries, self.path)
        self.entries = {entry.name: entry for entry in entries}

    def _named(self) -> Collection[str]:
        return self.entries

    def shape(self, key: str) -> tuple[int, ...]:
        return self.entries[key].shape

    def dtype(self, key: str) -> str:
        return self.entries[key].dtype

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries.values())

    def read(self, key: str) -> np.ndarray:
        entry = self.entries[key]
        span = np.asarray(self._map)[entry.begin : entry.end]
        if entry.dtype in NUMPY_TYPE:
            return span.view(NUMPY_TYPE[entry.dtype]).reshape(entry.shape)
        row_nbytes = lib.ggml_row_size(entry.type_id, entry.columns)
        return span.reshape(entry.nbytes // max(1, row_nbytes), row_nbytes)

    def natural_dtype(self, key: str) -> str:
        """As stored: what is published as GGUF was made for the memory that it takes."""
        dtype = self.entries[key].dtype.lower()
        return dtype if dtype in FLOATS or dtype in QUANTISED_IDS else "f32"


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF does, whatever its name."""
    if not path.is_file():  # a pipe would be waited for
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _entry(info: TensorInfo, header: Header, file_nbytes: int, path: Path) -> GgufEntry:
    def fail(problem: str) -> CheckpointError:
        return CheckpointError(f"{path}: tensor {info.name!r}: {problem}")

    known = 0 <= info.type_id < lib.GGML_TYPE_COUNT
    block = lib.ggml_blck_size(info.type_id) if known else 0
    if block < 1:
        raise fail(f"has type {info.type_id}, which this ggml does not know")
    shape = tuple(reversed(info.ne))
    if shape[-1] % block:
        raise fail(f"rows of {shape[-1]} elements do not fill blocks of {block}")
    nbytes = math.prod(shape) // block * lib.ggml_type_size(info.type_id)
    if info.offset % header.alignment:
        raise fail(f"its offset {info.offset} is no multiple of the alignment {header.alignment}")
    begin = header.data_begin + info.offset
    if begin + nbytes > file_nbytes:
        raise fail(
            f"ends at byte {begin + nbytes} but the file has {file_nbytes}; it is truncated or its header lies"
        )
    dtype = PLAIN_TYPES.get(info.type_id) or lib.ggml_type_name(info.type_id).decode().upper()
    original = header.metadata.get(ORIGINAL_SHAPE + info.name)
    if original is not None:
        shape = _original_shape(original, shape, block, fail)
    return GgufEntry(info.name, dtype, info.type_id, shape, begin, begin + nbytes, info.ne[0])


def _original_shape(original: Any, shape: tuple[int, ...], block: int, fail: Any) -> tuple[int, ...]:
    is_shape = isinstance(original, np.ndarray) and original.dtype.kind in "iu" and 0 < original.size <= 8
    sizes = tuple(int(size) for size in original) if is_shape else ()
    if not sizes or min(sizes) < 0 or math.prod(sizes) != math.prod(shape) or not math.prod(shape):
        raise fail(f"is noted to have been of shape {original}, which is no shape of {math.prod(shape)} elements")
    return sizes if sizes[-1] % block == 0 or len(sizes) > 2 else shape


def _check_apart(entries: list[GgufEntry], path: Path) -> None:
    """No two tensors may share bytes."""
    last: GgufEntry | None = None
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if last is not None and entry.nbytes and entry.begin < last.end:
            raise CheckpointError(f"{path}: tensors {last.name!r} and {entry.name!r} overlap")
        last = entry if last is None or entry.end > last.end else last
