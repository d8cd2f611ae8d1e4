"""Metadata and tensor descriptions of a GGUF file, read with every step checked against the bytes that are there."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgedit.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32

MAX_HEADER_NBYTES = 100_000_000  # as for safetensors; the vocabularies of language models take about a tenth
MAX_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 17
MAX_STRINGS = 1 << 20  # of all arrays together
MAX_NAME_NBYTES = 1024
MAX_DIMS = 4
MAX_DIM = 1 << 40
MAX_ALIGNMENT = 1 << 20

# The format's numbers of value types.
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SMALLEST_ENTRY = 8 + 4 + 1  # bytes: an empty name, a type, a one-byte value
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8  # bytes: an empty name, one axis


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One description: `ne` in ggml order, `offset` in bytes from the beginning of the data."""

    name: str
    ne: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata values are str, int, float, bool, numpy arrays of numbers, or lists of strings."""

    metadata: dict[str, Any]
    tensors: list[TensorInfo]
    alignment: int
    data_begin: int


class _Reader:
    """Takes values off the front of a file, never beyond its end."""

    def __init__(self, content: np.ndarray, path: Path) -> None:
        self.content = content
        self.path = path
        self.position = 0
        self.strings_left = MAX_STRINGS

    def fail(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: malformed GGUF at byte {self.position}: {problem}")

    @property
    def room(self) -> int:
        return min(len(self.content), MAX_HEADER_NBYTES) - self.position

    def take(self, count: int, what: str) -> bytes:
        if count > self.room:
            limit = f"or the limit of {MAX_HEADER_NBYTES} for a header"
            raise self.fail(f"{what} takes {count} bytes, beyond the {len(self.content)} of the file {limit}")
        self.position += count
        return self.content[self.position - count : self.position].tobytes()

    def number(self, form: str, what: str) -> Any:
        (value,) = struct.unpack("<" + form, self.take(struct.calcsize("<" + form), what))
        return value

    def count(self, what: str, smallest: int, most: int) -> int:
        """A count of things that take at least `smallest` bytes each."""
        value = self.number("Q", f"the number of {what}")
        if value > most or value * smallest > self.room:
            raise self.fail(f"{value} {what} do not fit into the file, or exceed the limit of {most}")
        return value

    def text(self, what: str, most: int, errors: str = "strict") -> str:
        length = self.number("Q", f"the length of {what}")
        if length > most:
            raise self.fail(f"{what} is {length} bytes long; at most {most}")
        try:
            return self.take(length, what).decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8: {error}") from None

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.text(f"the value of {key!r}", MAX_HEADER_NBYTES, "replace")
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _NUMBERS:
            raise self.fail(f"{key!r} has value type {kind}, which is none")
        value = self._numbers(kind, 1, key)[0].item()
        return bool(value) if kind == _BOOL else value

    def _array(self, key: str) -> Any:
        kind = self.number("I", f"the type of {key!r}")
        if kind == _STRING:
            count = self.count(f"strings of {key!r}", 8, self.strings_left)
            self.strings_left -= count
            return [self.value(_STRING, key) for _ in range(count)]
        if kind not in _NUMBERS:
            raise self.fail(f"{key!r} is an array of value type {kind}; only numbers and strings may be in one")
        count = self.count(f"numbers of {key!r}", np.dtype(_NUMBERS[kind]).itemsize, MAX_HEADER_NBYTES)
        return self._numbers(kind, count, key)

    def _numbers(self, kind: int, count: int, key: str) -> np.ndarray:
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize, f"the value of {key!r}"), dtype)


def read_header(content: np.ndarray, path: Path) -> Header:
    """Read and check everything before the data.

    Args:
        content: uint8, the mapped file.
        path: for messages.

    Raises:
        CheckpointError: for anything that is not as the format has it.
    """
    reader = _Reader(content, path)
    if reader.take(min(len(MAGIC), len(content)), "the magic") != MAGIC:
        raise CheckpointError(f"{path}: is not a GGUF file, or empty")
    version = reader.number("I", "the version")
    if version not in VERSIONS:
        swapped = "; it is written for big-endian machines" if version >> 24 in VERSIONS else ""
        raise CheckpointError(f"{path}: GGUF version {version} is not supported; supported: 2, 3{swapped}")
    num_tensors = reader.count("tensors", _SMALLEST_TENSOR, MAX_TENSORS)
    num_entries = reader.count("metadata entries", _SMALLEST_ENTRY, MAX_ENTRIES)
    metadata = _unique(reader, num_entries, _read_entry, "metadata")
    tensors = _unique(reader, num_tensors, _read_tensor, "tensor")
    alignment = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise CheckpointError(
            f"{path}: {ALIGNMENT_KEY} is {alignment!r}; legal are powers of two from 8 to {MAX_ALIGNMENT}"
        )
    data_begin = -(-reader.position // alignment) * alignment
    return Header(metadata, list(tensors.values()), alignment, data_begin)


def _unique(
    reader: _Reader, count: int, read: Callable[[_Reader], tuple[str, Any]], kind: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(count):
        name, value = read(reader)
        if name in found:
            raise reader.fail(f"{kind} {name!r} stands there twice")
        found[name] = value
    return found


def _read_entry(reader: _Reader) -> tuple[str, Any]:
    key = reader.text("a metadata key", MAX_NAME_NBYTES)
    return key, reader.value(reader.number("I", f"the type of {key!r}"), key)


def _read_tensor(reader: _Reader) -> tuple[str, TensorInfo]:
    name = reader.text("a tensor's name", MAX_NAME_NBYTES)
    num_dims = reader.number("I", f"the number of axes of {name!r}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise reader.fail(f"tensor {name!r} has {num_dims} axes; legal: 1 to {MAX_DIMS}")
    ne = struct.unpack(f"<{num_dims}Q", reader.take(8 * num_dims, f"the shape of {name!r}"))
    if math.prod(max(1, size) for size in ne) >= MAX_DIM:
        raise reader.fail(f"tensor {name!r} has shape {list(reversed(ne))}, which no file holds")
    type_id, offset = struct.unpack("<IQ", reader.take(12, f"the place of {name!r}"))
    return name, TensorInfo(name, ne, type_id, offset)
