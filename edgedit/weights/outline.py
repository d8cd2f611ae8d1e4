"""Weights as shapes and types only: what planning needs of a model that nobody has loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgedit.graph._ggml import lib
from edgedit.graph.tensor import WeightTensor
from edgedit.weights.convert import check_compute_dtype
from edgedit.weights.loader import declare, memory_type

if TYPE_CHECKING:
    from edgedit.models.module import Module


@contextmanager
def outline(module: Module, compute_dtype: str) -> Iterator[dict[str, int]]:
    """Give every parameter a tensor without memory; yields the bytes that loading would take, by type.

    The parameters are only valid inside. Raises ValueError for an unknown compute type.
    """
    check_compute_dtype(compute_dtype)
    parameters = dict(module.named_parameters())
    dtypes = {name: memory_type(parameter, compute_dtype) for name, parameter in parameters.items()}
    context, pointers = declare(parameters, dtypes)
    nbytes: Counter[str] = Counter()
    try:
        for name, parameter in parameters.items():
            size = lib.ggml_nbytes(pointers[name])
            nbytes[dtypes[name]] += size
            parameter.tensor = WeightTensor(pointers[name], parameter.shape, dtypes[name], name, size)
        yield dict(nbytes)
    finally:
        for parameter in parameters.values():
            parameter.tensor = None
        lib.ggml_free(context)
