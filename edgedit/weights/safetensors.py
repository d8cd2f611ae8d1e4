"""Memory-mapped reader of one safetensors file.

The format (https://github.com/huggingface/safetensors#format): 8 bytes little-endian header length, a JSON object
that maps each name to dtype, shape and byte span, then the data, which the spans tile without holes or overlaps.
Every one of these promises is checked before a tensor is handed out, so that a damaged or hostile file ends in a
`CheckpointError` that names it and never in a wrong read.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np

LENGTH_NBYTES = 8
MAX_HEADER_NBYTES = 100_000_000  # the limit of the reference reader
MAX_DIMS = 8
MAX_DIM = 1 << 40
MAX_NBYTES = 1 << 63  # also of a shape whose empty axes count as 1

ITEMSIZE = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip

# bf16 and fp8 have no numpy type: their bits travel as unsigned integers.
NUMPY_TYPE = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "F8_E5M2": "u1",
    "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the header; `begin` and `end` are byte offsets from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


class SafetensorsFile:
    """A validated, memory-mapped safetensors file.

    Args:
        path: the file. Only its header is read here; data pages come in when a tensor is used.

    Raises:
        CheckpointError: if the file is missing, truncated or malformed in any way.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with open(self.path, "rb") as file:
                self.nbytes = file.seek(0, 2)
                file.seek(0)
                header, data_begin = _read_header(file, self.nbytes, self.path)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error.strerror}") from error
        self.metadata = _parse_metadata(header.pop("__metadata__", {}), self.path)
        entries = [_parse_entry(name, fields, data_begin, self.path) for name, fields in header.items()]
        _check_spans(entries, data_begin, self.nbytes, self.path)
        self.entries = {entry.name: entry for entry in entries}
        self._map: Any = None

    def read(self, name: str) -> np.ndarray:
        """The tensor as a read-only view of the mapped file, in its stored type (bf16 and fp8 as their bits)."""
        import numpy as np

        entry = self.entries[name]
        if entry.dtype not in NUMPY_TYPE:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has type {entry.dtype}, which is not supported; "
                f"supported: {', '.join(NUMPY_TYPE)}"
            )
        if self._map is None:
            self._map = np.memmap(self.path, dtype=np.uint8, mode="r")
            if len(self._map) != self.nbytes:
                raise CheckpointError(
                    f"{self.path}: changed size from {self.nbytes} to {len(self._map)} bytes"
                )
        span = np.asarray(self._map)[entry.begin : entry.end]
        return span.view(NUMPY_TYPE[entry.dtype]).reshape(entry.shape)


def _read_header(file: Any, nbytes: int, path: Path) -> tuple[dict[str, Any], int]:
    """The header as a dict and the offset at which the data begin."""
    if nbytes < LENGTH_NBYTES + 2:
        raise CheckpointError(
            f"{path}: {nbytes} bytes are too few for a safetensors file; it is truncated or empty"
        )
    length = int.from_bytes(file.read(LENGTH_NBYTES), "little")
    room = nbytes - LENGTH_NBYTES
    if length > min(room, MAX_HEADER_NBYTES):
        raise CheckpointError(
            f"{path}: header length {length} exceeds the {room} bytes that follow it or the limit of "
            f"{MAX_HEADER_NBYTES}; the file is truncated or not safetensors"
        )
    text = file.read(length)
    if not text.startswith(b"{"):
        raise CheckpointError(f"{path}: header does not begin with '{{'; the file is not safetensors")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: malformed header: {error}") from error
    return header, LENGTH_NBYTES + length


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Raises ValueError for repeated keys, and for half a character, which escapes can spell."""
    "".join(text for pair in pairs for text in pair if isinstance(text, str)).encode()
    keys = dict(pairs)
    if len(keys) != len(pairs):
        repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        raise ValueError(f"duplicate keys {', '.join(map(repr, repeated[:10]))}")
    return keys


def _parse_metadata(metadata: Any, path: Path) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must map strings to strings, not {_brief(metadata)}")
    return metadata


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_DIM


def _parse_entry(name: str, fields: Any, data_begin: int, path: Path) -> Entry:
    def fail(problem: str) -> CheckpointError:
        return CheckpointError(f"{path}: tensor {name!r}: {problem}")

    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise fail("its header entry must have exactly dtype, shape and data_offsets")
    dtype, shape, span = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEMSIZE:
        raise fail(f"unknown dtype {dtype!r}; known: {', '.join(ITEMSIZE)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(map(_is_count, shape)):
        raise fail(f"shape {_brief(shape)} is not a list of at most {MAX_DIMS} sizes in [0, 2^40)")
    if not isinstance(span, list) or len(span) != 2 or not all(type(offset) is int for offset in span):
        raise fail(f"data_offsets {_brief(span)} are not two integers")
    begin, end = span
    if not 0 <= begin <= end:
        raise fail(f"data_offsets [{begin}, {end}] are not an ascending span")
    if ITEMSIZE[dtype] * math.prod(max(1, size) for size in shape) >= MAX_NBYTES:
        raise fail(f"shape {_brief(shape)} is beyond what can be addressed")
    nbytes = ITEMSIZE[dtype] * math.prod(shape)
    if nbytes != end - begin:
        raise fail(f"shape {shape} of {dtype} takes {nbytes} bytes but data_offsets span {end - begin}")
    return Entry(name, dtype, tuple(shape), data_begin + begin, data_begin + end)


def _check_spans(entries: list[Entry], data_begin: int, file_nbytes: int, path: Path) -> None:
    """The spans must tile the data section: inside the file, no overlap, no hole, nothing left over."""
    position, previous = data_begin, "the header"
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.end > file_nbytes:
            raise CheckpointError(
                f"{path}: tensor {entry.name!r} ends at byte {entry.end} but the file has {file_nbytes}; "
                "it is truncated or its header lies"
            )
        if entry.begin < position:
            raise CheckpointError(f"{path}: tensors {previous!r} and {entry.name!r} overlap")
        if entry.begin > position:
            raise CheckpointError(
                f"{path}: {entry.begin - position} bytes before tensor {entry.name!r} belong to none"
            )
        position, previous = entry.end, entry.name
    if position != file_nbytes:
        raise CheckpointError(f"{path}: {file_nbytes - position} bytes after the last tensor belong to none")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
