"""A run of elements in memory: what collectives send from and receive into."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgedit import dtypes

if TYPE_CHECKING:
    import numpy


@dataclass(frozen=True)
class Buffer:
    """`count` elements of `dtype` at the address `pointer`; `owner` is whatever keeps that memory alive."""

    pointer: int
    count: int
    dtype: str
    device: str = "cpu"
    owner: Any = None

    def __post_init__(self) -> None:
        dtypes.check(self.dtype)
        if self.count < 0:
            raise ValueError(f"a buffer of {self.count} elements; legal: 0 or more")
        if self.count and not self.pointer:
            raise ValueError(f"a buffer of {self.count} {self.dtype} elements at a null pointer")

    @classmethod
    def of(cls, array: numpy.ndarray, dtype: str | None = None) -> Buffer:
        """The memory of a C-contiguous numpy array of any shape, which the buffer keeps alive (uint16: bf16 bits)."""
        if not array.flags.c_contiguous:
            raise ValueError(f"an array of shape {array.shape} and strides {array.strides} is not contiguous")
        name = dtypes.from_numpy(array.dtype) if dtype is None else dtype
        if dtypes.itemsize(name) != array.itemsize:
            raise ValueError(
                f"array of {array.dtype} cannot stand for {name}: {array.itemsize} bytes an element"
            )
        return cls(array.ctypes.data, array.size, name, owner=array)

    @property
    def nbytes(self) -> int:
        return self.count * dtypes.itemsize(self.dtype)

    def as_array(self) -> numpy.ndarray:
        """A writable view [count] of the memory (bf16 as uint16), which keeps the owner alive."""
        import numpy

        if not self.count:
            return numpy.empty(0, dtypes.to_numpy(self.dtype))
        memory = (ctypes.c_ubyte * self.nbytes).from_address(self.pointer)
        memory.owner = self.owner  # type: ignore[attr-defined]
        return numpy.frombuffer(memoryview(memory), dtypes.to_numpy(self.dtype))


def copy_elements(source: Buffer, source_offset: int, target: Buffer, target_offset: int, count: int) -> None:
    """Copy `count` elements between host buffers of one dtype; offsets are elements."""
    width = dtypes.itemsize(source.dtype)
    if count:
        ctypes.memmove(
            target.pointer + target_offset * width, source.pointer + source_offset * width, count * width
        )
