"""Shapes, views and copies."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Hashable, Sequence

from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.native import NO_OPERATION
from edgedit.graph.ops.checks import normalised_axis, require, require_dtype
from edgedit.graph.ops.fused import FusedOps
from edgedit.graph.tensor import MAX_DIMS, Tensor, ne_of

# ggml keeps the offset and strides of its SET node in 32-bit fields and refuses offsets from 2^30 on.
MAX_WRITE_NBYTES = 1 << 30


class LayoutOps(FusedOps):
    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The same elements under another shape; x must be contiguous (-1 for one axis as in numpy)."""
        shape = _resolve_shape(x, shape)
        require(x.is_contiguous, "reshape", "a strided view must be made contiguous first", x)
        return self._emit(lib.ggml_reshape_4d(self._context, x.pointer, *ne_of(shape)), shape, "reshape")

    def permute(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        """A view with axes reordered as numpy.transpose does."""
        require(sorted(axes) == list(range(x.ndim)), "permute", f"{axes} does not permute the axes", x)
        # ggml asks where each of its own dimensions goes, counted from the fastest
        ggml_axes = list(range(MAX_DIMS))
        for target, source in enumerate(axes):
            ggml_axes[x.ndim - 1 - source] = x.ndim - 1 - target
        shape = tuple(x.shape[axis] for axis in axes)
        return self._emit(lib.ggml_permute(self._context, x.pointer, *ggml_axes), shape, "permute")

    def slice(self, x: Tensor, axis: int, start: int, stop: int) -> Tensor:
        """A view of x[..., start:stop, ...] along one axis."""
        axis = normalised_axis("slice", x, axis)
        require(0 <= start <= stop <= x.shape[axis], "slice", f"[{start}:{stop}] is outside axis {axis}", x)
        if (start, stop) == (0, x.shape[axis]):
            return x
        shape = (*x.shape[:axis], stop - start, *x.shape[axis + 1 :])
        return self.view(x, shape, x.strides, start * x.strides[axis])

    def view(self, x: Tensor, shape: tuple[int, ...], strides: Sequence[int], offset: int) -> Tensor:
        """A strided view; strides and offset in bytes, the last axis dense."""
        elements = ne_of(shape)
        steps = list(reversed(strides))[1:]
        while len(steps) < MAX_DIMS - 1:
            steps.append(steps[-1] * elements[len(steps)] if steps else x.strides[-1] * elements[0])
        return self._emit(
            lib.ggml_view_4d(self._context, x.pointer, *elements, *steps, offset), shape, "view"
        )

    def reinterpret(self, x: Tensor, dtype: str, shape: tuple[int, ...]) -> Tensor:
        """A view of the bytes of x, which is packed, as another type: for what travels as bytes."""
        type_id = _ggml.TYPE_IDS[dtype]
        strides = [lib.ggml_type_size(type_id), _ggml.row_nbytes(dtype, ne_of(shape)[0])]
        for size in ne_of(shape)[1:3]:
            strides.append(strides[-1] * size)
        fits = x.is_contiguous and x.nbytes == strides[-1] * ne_of(shape)[3]
        require(fits, "reinterpret", f"{list(shape)} of {dtype} takes other bytes", x)
        pointer = lib.ggml_view_1d(self._context, x.pointer, 0, 0)
        tensor = pointer.contents
        tensor.type = type_id
        for axis, (size, stride) in enumerate(zip(ne_of(shape), strides, strict=True)):
            tensor.ne[axis], tensor.nb[axis] = size, stride
        return self._emit(pointer, shape, "reinterpret")

    def split(self, x: Tensor, parts: int, axis: int) -> list[Tensor]:
        """Equal parts along an axis, as views."""
        axis = normalised_axis("split", x, axis)
        size, rest = divmod(x.shape[axis], parts)
        require(rest == 0, "split", f"axis {axis} does not divide into {parts} parts", x)
        return [self.slice(x, axis, part * size, (part + 1) * size) for part in range(parts)]

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Join tensors along one axis; other axes must agree.

        Neighbouring slices of one tensor are not copied: the result is a slice of it; nor is what is joined with
        nothing but tensors without elements.
        """
        axis = normalised_axis("concat", tensors[0], axis)
        tensors = [x for x in tensors if x.shape[axis]] or tensors[:1]
        first = tensors[0]
        if self._are_neighbours(tensors, axis):
            length = sum(x.shape[axis] for x in tensors)
            shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
            return self.view(first, shape, first.strides, 0)
        result = first
        for other in tensors[1:]:
            same = other.ndim == first.ndim and other.dtype == first.dtype
            pairs = zip(first.shape, other.shape, strict=False)
            same = same and all(a == b for i, (a, b) in enumerate(pairs) if i != axis)
            require(same, "concat", f"shapes must agree except on axis {axis}", first, other)
            shape = (*first.shape[:axis], result.shape[axis] + other.shape[axis], *first.shape[axis + 1 :])
            pointer = lib.ggml_concat(self._context, result.pointer, other.pointer, first.ndim - 1 - axis)
            result = self._emit(pointer, shape, "concat")
        return result

    def _are_neighbours(self, tensors: Sequence[Tensor], axis: int) -> bool:
        """True for two or more views of one tensor, each beginning where the one before ends."""
        places = [self._place_of_view(x, axis) for x in tensors]
        offsets = [x.pointer.contents.view_offs for x in tensors]
        steps = [x.shape[axis] * x.strides[axis] for x in tensors]
        ends = [offset + step for offset, step in zip(offsets, steps, strict=True)]
        return len(tensors) > 1 and None not in places and len(set(places)) == 1 and ends[:-1] == offsets[1:]

    def _place_of_view(self, x: Tensor, axis: int) -> Hashable:
        """What views of one tensor share that lie side by side along an axis; None for what is no view."""
        if x.node is None or self.nodes[x.node].op != "view":
            return None
        source = ctypes.addressof(x.pointer.contents.view_src.contents)
        others = (*x.shape[:axis], *x.shape[axis + 1 :])
        return source, self.nodes[x.node].inputs, x.dtype, x.strides, others

    def repeat(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """x tiled to a larger shape whose axes are multiples of its own."""
        pairs = zip(shape, x.shape, strict=False)
        fits = len(shape) == x.ndim and all(big % small == 0 for big, small in pairs)
        require(fits, "repeat", f"{list(shape)} is no multiple of the shape", x)
        return self._emit(lib.ggml_repeat_4d(self._context, x.pointer, *ne_of(shape)), shape, "repeat")

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """A packed copy in another type: floats, or q8_0, whose blocks must fill the last axis."""
        require_dtype("cast", x, "f32", "f16", "bf16", "q8_0")
        fills = dtype != "q8_0" or x.shape[-1] % _ggml.block_size(dtype) == 0
        require(fills, "cast", f"blocks of {dtype} do not fill the last axis", x)
        if x.dtype == dtype:
            return x
        return self._emit(lib.ggml_cast(self._context, x.pointer, _ggml.TYPE_IDS[dtype]), x.shape, "cast")

    def pad(self, x: Tensor, before: tuple[int, ...], after: tuple[int, ...]) -> Tensor:
        """Zeros added before and after, one count per axis."""
        require(
            len(before) == len(after) == x.ndim, "pad", f"{before} and {after} need one count per axis", x
        )
        counts = []
        for left, right in zip(reversed(before), reversed(after), strict=True):
            counts += [left, right]
        counts += [0] * (2 * MAX_DIMS - len(counts))
        shape = tuple(size + left + right for size, left, right in zip(x.shape, before, after, strict=True))
        return self._emit(lib.ggml_pad_ext(self._context, x.pointer, *counts), shape, "pad")

    def empty(self, shape: tuple[int, ...], name: str = "empty") -> Tensor:
        """Memory with no defined contents, to be filled by `write`; its lifetime is the graph allocator's."""
        pointer = lib.ggml_custom_4d(
            self._context, _ggml.TYPE_IDS["f32"], *ne_of(shape), None, 0, NO_OPERATION, 1, None
        )
        return self._emit(pointer, shape, name)

    def write(self, target: Tensor, source: Tensor, strides: Sequence[int], offset: int) -> Tensor:
        """Copy `source` into `target` in place; returns the target as it is afterwards.

        `strides` and `offset` say where the source's axes land in the target, in elements, the last axis dense.
        Writes into one target form a chain: each takes the result of the one before.
        """
        require_dtype("write", target, "f32")
        require_dtype("write", source, "f32")
        require(
            target.is_contiguous and len(strides) == source.ndim,
            "write",
            "one stride per axis",
            target,
            source,
        )
        last = offset + sum((size - 1) * stride for size, stride in zip(source.shape, strides, strict=True))
        require(
            source.count == 0 or last < target.count, "write", "the source leaves the target", target, source
        )
        require(
            target.nbytes <= MAX_WRITE_NBYTES,
            "write",
            f"ggml addresses at most {MAX_WRITE_NBYTES} bytes here; use more ranks, a smaller batch or size",
            target,
        )
        itemsize = 4
        steps = [stride * itemsize for stride in list(reversed(strides))[1:]]
        steps += [MAX_WRITE_NBYTES - 1] * (MAX_DIMS - 1 - len(steps))  # axes of length one never step
        pointer = lib.ggml_set_inplace(
            self._context, target.pointer, source.pointer, *steps, offset * itemsize if source.count else 0
        )
        return self._emit(pointer, target.shape, "write")


def _resolve_shape(x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    if shape.count(-1) == 1:
        known = -math.prod(shape)
        require(
            known != 0 and x.count % known == 0, "reshape", f"{x.count} elements do not fit {list(shape)}", x
        )
        shape = tuple(x.count // known if size == -1 else size for size in shape)
    require(math.prod(shape) == x.count, "reshape", f"{x.count} elements do not fit {list(shape)}", x)
    return shape
