"""Weights as shapes and types only: what planning needs of a model that nobody has loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgedit.graph._ggml import lib
from edgedit.weights.blocks import bind_shards, shard_forms
from edgedit.weights.convert import check_compute_dtype
from edgedit.weights.forms import Form, declare

if TYPE_CHECKING:
    from edgedit.models.module import Module


@contextmanager
def outline(module: Module, compute_dtype: str, kernels: str = "ggml") -> Iterator[dict[str, int]]:
    """Give every parameter a tensor without memory; yields the bytes that loading would take, by type. Of blocks that
    ranks gather these are the bytes that this rank keeps.

    `kernels` is the family that weights would be packed for. The parameters are only valid inside. Raises ValueError
    for an unknown compute type.
    """
    check_compute_dtype(compute_dtype)
    parameters = dict(module.named_parameters())
    forms = {name: Form.of(parameter, compute_dtype, kernels) for name, parameter in parameters.items()}
    context, pointers = declare(forms | shard_forms(module, forms))
    layouts = {
        name: block.layout for block in module.weight_blocks.values() if block.layout for name in block.parameters
    }
    nbytes: Counter[str] = Counter()
    try:
        bind_shards(module, pointers)
        for name, parameter in parameters.items():
            whole = forms[name].nbytes
            nbytes[forms[name].dtype] += len(layouts[name].kept(name, whole)) if name in layouts else whole
            parameter.tensor = forms[name].bound(pointers[name], name)
        yield dict(nbytes)
    finally:
        for parameter in parameters.values():
            parameter.tensor = None
        for block in module.weight_blocks.values():
            block.shard = None
        lib.ggml_free(context)
