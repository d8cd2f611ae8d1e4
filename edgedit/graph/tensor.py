"""Handles on ggml tensors: shapes in numpy order, the pointer kept beside them."""

from __future__ import annotations

import ctypes
import math
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from edgedit.graph import _ggml

MAX_DIMS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One tensor of a graph: the result of a node, or a leaf (input, constant, weight) when `node` is None.

    `shape` is in numpy order; ggml's `ne` is its reverse padded with ones, so at most four dimensions.
    A weight that is `packed` for a kernel family is plain bytes to ggml: only `linear` can use it; one that
    `is_gathered` has bytes that a collective of the graph brings.
    """

    pointer: Any  # ctypes pointer to ggml_tensor
    shape: tuple[int, ...]
    dtype: str
    name: str
    node: int | None = None
    packed: str | None = None
    is_gathered: bool = False

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return _ggml.lib.ggml_nbytes(self.pointer)

    @property
    def is_contiguous(self) -> bool:
        return bool(_ggml.lib.ggml_is_contiguous(self.pointer))

    @property
    def is_padded_1d(self) -> bool:
        """Rows may be apart, but all by the same distance: ggml's word for what some operations ask for."""
        contents = self.pointer.contents
        ne, nb = contents.ne, contents.nb
        return nb[2] == nb[1] * ne[1] and nb[3] == nb[2] * ne[2]

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each axis, numpy order."""
        return tuple(self.pointer.contents.nb[self.ndim - 1 - axis] for axis in range(self.ndim))

    @property
    def tensor_address(self) -> int:
        """Of ggml's tensor, for operators that take a leaf by address."""
        return ctypes.addressof(self.pointer.contents)

    def row_levels(self, leading: tuple[int, ...]) -> int:
        """Steps that it takes to walk the rows in order, where axes of length one repeat up to `leading`."""
        extents = (*(1,) * (len(leading) + 1 - self.ndim), *self.shape[:-1])
        steps = (*(0,) * (len(leading) + 1 - self.ndim), *self.strides[:-1])
        walks: list[tuple[int, int]] = []  # extent, stride
        for whole, extent, step in reversed(list(zip(leading, extents, steps, strict=True))):
            stride = 0 if extent == 1 else step
            if whole == 1:
                continue
            if walks and stride == walks[-1][0] * walks[-1][1]:
                walks[-1] = (walks[-1][0] * whole, walks[-1][1])
            else:
                walks.append((whole, stride))
        return len(walks)

    @property
    def address(self) -> int:
        """Where the data stands; only known once the graph is allocated."""
        address = self.pointer.contents.data
        assert address is not None, f"tensor {self.name!r} has no memory yet"
        return address

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True, eq=False)
class WeightTensor:
    """A parameter's values in ggml memory owned by a weight store (or, for planning, only their shape and type).

    packed  kernel family in whose panels the values stand, ggml's tensor then being bytes; None for ggml's own form
    """

    pointer: Any
    shape: tuple[int, ...]
    dtype: str
    name: str
    nbytes: int
    packed: str | None = None


class TensorFields(NamedTuple):
    """The fields of a ggml_tensor that a recorder reads, taken from its memory at once.

    Reading them one by one through ctypes would dominate the time to build a large graph.
    """

    address: int
    type: int
    shape: list[int]  # ggml order
    op: int
    sources: list[int]  # addresses, without the tensor itself (a cast lists itself as its second source)
    view_source: int

    @classmethod
    def at(cls, address: int) -> TensorFields:
        memory = ctypes.string_at(address, _FIELDS_NBYTES)
        type_id, *ne = _TYPE_AND_NE.unpack_from(memory)
        (op,) = _INT.unpack_from(memory, _ggml.lib.ggml_tensor.op.offset)
        *sources, view_source = _SOURCES.unpack_from(memory, _ggml.lib.ggml_tensor.src.offset)
        return cls(address, type_id, ne, op, [s for s in sources if s and s != address], view_source)


_TYPE_AND_NE = struct.Struct("i4x8x4q")
_INT = struct.Struct("i")
_SOURCES = struct.Struct(f"{_ggml.lib.GGML_MAX_SRC + 1}Q")  # src and, right behind it, view_src
_FIELDS_NBYTES = _ggml.lib.ggml_tensor.view_src.offset + 8


def ne_of(shape: tuple[int, ...]) -> list[int]:
    """ggml dimensions (fastest first, padded with ones to four) of a numpy-order shape."""
    if len(shape) > MAX_DIMS:
        raise ValueError(f"ggml tensors have at most {MAX_DIMS} dimensions, got shape {list(shape)}")
    return list(reversed(shape)) + [1] * (MAX_DIMS - len(shape))


def tensor_array(*tensors: Tensor) -> ctypes.Array:
    """Their pointers as C takes them."""
    return (ctypes.POINTER(_ggml.lib.ggml_tensor) * len(tensors))(*(tensor.pointer for tensor in tensors))
