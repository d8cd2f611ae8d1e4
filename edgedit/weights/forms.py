"""How a parameter stands in memory, told from its shape and role before anything is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgedit import _native
from edgedit.errors import GgmlError
from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.registry import PACKED_TYPES
from edgedit.graph.tensor import WeightTensor, ne_of
from edgedit.weights.convert import fitting_type

if TYPE_CHECKING:
    from edgedit.models.module import Parameter

_PRODUCTS = ("linear", "adapter", "patch")  # roles of weights that rows are multiplied by


@dataclass(frozen=True, slots=True)
class Form:
    """Shape, type, bytes, and the kernel family in whose panels the values stand, None for ggml's own form."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    packed: str | None = None

    @classmethod
    def of(cls, parameter: Parameter, compute_dtype: str, kernels: str) -> Form:
        """Two-dimensional weights of linear layers take the compute type, or what `fitting_type` has for rows that do
        not fill its blocks, and are packed unless they are quantised; everything else is f32, and packed as well if it
        is a factor of an adapter or multiplies patches. Of a shared parameter it is the part of this rank that counts,
        and its type is the same on every rank."""
        part = parameter.part
        shape = part.shape(parameter.shape) if part else parameter.shape
        if parameter.role == "patch":
            shape = (shape[0], math.prod(shape[1:]))
        if parameter.role not in _PRODUCTS or len(shape) != 2:
            return cls(shape, "f32", math.prod(shape) * 4)
        cuts = part.cuts if part and part.axis == 1 else ()
        dtype = fitting_type(parameter.shape, compute_dtype, cuts) if parameter.role == "linear" else "f32"
        if kernels == "ggml" or dtype not in PACKED_TYPES:
            return cls(shape, dtype, shape[0] * _ggml.row_nbytes(dtype, shape[1]))
        nbytes = _native.kernels.packed_nbytes(kernels, _ggml.TYPE_IDS[dtype], *shape)
        return cls(shape, dtype, nbytes, kernels)

    def bound(self, pointer: Any, name: str) -> WeightTensor:
        """What the parameter holds once ggml's tensor stands for it."""
        return WeightTensor(pointer, self.shape, self.dtype, name, self.nbytes, self.packed)


def declare(forms: Mapping[str, Form]) -> tuple[Any, dict[str, Any]]:
    """A ggml context and its tensors, without memory yet; packed ones are bytes."""
    size = (len(forms) + 1) * lib.ggml_tensor_overhead()
    context = lib.ggml_init(lib.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
    if not context:
        raise GgmlError(f"ggml could not create a context for {len(forms)} weights")
    pointers = {}
    for name, form in forms.items():
        type_id = _ggml.TYPE_IDS["i8" if form.packed else form.dtype]
        shape = (form.nbytes,) if form.packed else form.shape
        pointers[name] = lib.ggml_new_tensor_4d(context, type_id, *ne_of(shape))
        lib.ggml_set_name(pointers[name], name[-63:].encode())
    return context, pointers
