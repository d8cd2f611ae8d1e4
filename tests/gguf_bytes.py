"""GGUF files byte by byte, right or wrong, written from the format's description alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

F32, F16, Q4_0, Q8_0, Q4_K = 0, 1, 2, 8, 12  # ggml's numbers of tensor types
UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)


def text(value: str | bytes, length: int | None = None) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(content) if length is None else length) + content


def entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def array(kind: int, payload: bytes, count: int) -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def tensor(name: str | bytes, ne: Sequence[int], kind: int, offset: int, num_dims: int | None = None) -> bytes:
    """`ne` is the shape in ggml order."""
    dims = len(ne) if num_dims is None else num_dims
    return text(name) + struct.pack(f"<I{len(ne)}Q", dims, *ne) + struct.pack("<IQ", kind, offset)


@dataclass
class Gguf:
    """A file of one metadata entry and two tensors, [3, 32] in F32 and [2, 32] in Q8_0, unless said otherwise."""

    entries: list[bytes] = field(
        default_factory=lambda: [entry("general.architecture", STRING, text("flux"))]
    )
    tensors: list[bytes] = field(
        default_factory=lambda: [tensor("a", (32, 3), F32, 0), tensor("b.weight", (32, 2), Q8_0, 384)]
    )
    data: bytes = bytes(range(256)) + bytes(224)
    magic: bytes = b"GGUF"
    version: int = 3
    num_tensors: int | None = None
    num_entries: int | None = None
    alignment: int = 32

    def __bytes__(self) -> bytes:
        counts = (
            len(self.tensors) if self.num_tensors is None else self.num_tensors,
            len(self.entries) if self.num_entries is None else self.num_entries,
        )
        head = self.magic + struct.pack("<IQQ", self.version, *counts)
        head += b"".join(self.entries) + b"".join(self.tensors)
        return head + bytes(-len(head) % self.alignment) + self.data
