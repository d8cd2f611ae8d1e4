"""Fills a module's parameters from a checkpoint, converted once to the types they are computed in."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedit.errors import CheckpointError, GgmlError
from edgedit.graph._ggml import lib
from edgedit.host import usable_cores
from edgedit.weights.blocks import WeightBlock, bind_shards, shard_forms
from edgedit.weights.convert import (
    AUTO,
    check_compute_dtype,
    check_weight_type,
    converted_pieces,
    is_quantised,
)
from edgedit.weights.forms import Form, declare
from edgedit.weights.matching import Rename, match
from edgedit.weights.memory import Memory
from edgedit.weights.packing import pack
from edgedit.weights.sharding import share_of

if TYPE_CHECKING:
    from edgedit.models.module import Module, Parameter
    from edgedit.weights.sources import TensorSource

Progress = Callable[[int, int], None]


class WeightStore:
    """Owns the memory of a module's weights; parameters are valid for as long as it is open."""

    def __init__(self, context: Any, memory: Memory) -> None:
        self.nbytes = memory.nbytes
        self._free = weakref.finalize(self, _free, context, memory)

    def close(self) -> None:
        """Free the weights now. Safe to call twice."""
        self._free()


def load(
    module: Module,
    checkpoint: TensorSource,
    compute_dtype: str = "f32",
    rename: Rename | None = None,
    ignore: Iterable[str] = (),
    progress: Progress | None = None,
    kernels: str = "ggml",
) -> WeightStore:
    """Compare names and shapes, then read every weight once into one buffer, in the form that `Form.of` states.

    Of parameters that ranks share only this rank's part is read; of blocks that ranks gather, only weights of which
    this rank keeps something.

    Nothing is allocated before all names, shapes and types were found right, and no more than a piece of a tensor is
    held besides the checkpoint's mapping and the result.

    Args:
        rename: checkpoint key to parameter name; None for a key that is not needed. Two keys may lead to one
            parameter (tied weights) if their values are the same.
        ignore: shell-style patterns of further keys that are not needed.
        progress: called with (bytes done, bytes in all) after each tensor.
        compute_dtype: of linear weights; "auto" for the natural type of each.
        kernels: family that linear weights are packed for; "ggml" for none.

    Raises:
        ValueError: if the compute dtype is unknown.
        CheckpointError: listing missing, unknown and misshapen tensors, or naming one that cannot be converted.
        GgmlError: where memory does not suffice.
    """
    check_compute_dtype(compute_dtype)
    parameters = dict(module.named_parameters())
    keys = _match(parameters, checkpoint, rename, tuple(ignore), type(module).__name__)
    forms = {
        name: Form.of(
            parameter, checkpoint.natural_dtype(keys[name]) if compute_dtype == AUTO else compute_dtype, kernels
        )
        for name, parameter in parameters.items()
    }

    blocks = {name: block for block in module.weight_blocks.values() for name in block.parameters}
    context, pointers = declare(forms | shard_forms(module, forms))
    try:
        store = WeightStore(context, Memory(p for name, p in pointers.items() if name not in blocks))
    except GgmlError as error:
        lib.ggml_free(context)
        raise GgmlError(f"{checkpoint.path}: {error}, as {compute_dtype}") from None

    total, done = sum(form.nbytes for form in forms.values()), 0
    cores = usable_cores()
    try:
        with ThreadPoolExecutor(cores) as workers:
            for name, form in forms.items():
                with _place(name, form, pointers, blocks.get(name)) as place:
                    if place is not None:
                        _fill(place, form, parameters[name], checkpoint, keys[name], workers, cores)
                done += form.nbytes
                if progress:
                    progress(done, total)
    except BaseException:
        store.close()
        raise
    for name, parameter in parameters.items():
        parameter.tensor = forms[name].bound(pointers[name], name)
    bind_shards(module, pointers)
    return store


@contextmanager
def _place(
    name: str, form: Form, pointers: Mapping[str, Any], block: WeightBlock | None
) -> Iterator[Any | None]:
    """The ggml tensor to fill with a weight, None where this rank keeps nothing of it.

    Of a block that is gathered it is a temporary one, from which this rank's share is taken.
    """
    if block is None:
        yield pointers[name]
        return
    assert block.layout is not None, f"block {block.name} has no layout"
    kept = block.layout.kept(name, form.nbytes)
    if not kept:
        yield None
        return
    context, temporary = declare({name: form})
    memory = Memory(temporary.values())
    try:
        yield temporary[name]
        share = pointers[block.shard_name].contents.data + block.layout.offsets[name] - block.layout.begin
        whole = temporary[name].contents.data
        ctypes.memmove(share + kept.start, whole + kept.start, len(kept))
    finally:
        _free(context, memory)


def _match(
    parameters: Mapping[str, Parameter],
    checkpoint: TensorSource,
    rename: Rename | None,
    ignore: tuple[str, ...],
    needed_by: str,
) -> dict[str, str]:
    """Checkpoint key of each parameter; raises unless every name, shape and type fits."""
    found = match({name: parameter.shape for name, parameter in parameters.items()}, checkpoint, rename, ignore)
    for keys in found.keys.values():
        for key in keys:
            check_weight_type(checkpoint, key)
    if found.problems:
        raise CheckpointError(
            f"{checkpoint.path}: does not hold the weights of {needed_by}: {found.problems}"
        )
    for name, keys in found.keys.items():
        for other in keys[1:]:
            if not _same_values(checkpoint, keys[0], other):
                raise CheckpointError(
                    f"{checkpoint.path}: {keys[0]} and {other} both stand for {name} and differ"
                )
    return {name: keys[0] for name, keys in found.keys.items()}


def _same_values(checkpoint: TensorSource, key: str, other: str) -> bool:
    if checkpoint.dtype(key) == checkpoint.dtype(other):
        return np.array_equal(checkpoint.read(key), checkpoint.read(other))
    return np.array_equal(checkpoint.as_f32(key), checkpoint.as_f32(other))


def _fill(
    pointer: Any,
    form: Form,
    parameter: Parameter,
    checkpoint: TensorSource,
    key: str,
    workers: Executor,
    num_workers: int,
) -> None:
    """Convert one tensor, or the part of it that this rank holds, into its place."""
    part = parameter.part
    whole = form.shape if part is None else parameter.shape
    values, stored, scale = checkpoint.read(key), checkpoint.dtype(key), checkpoint.scale(key)
    if not is_quantised(stored) and values.shape != whole:
        values = values.reshape(whole)
    if part is not None:
        values, stored, scale = share_of(values, stored, scale, part)
    if form.packed:
        pack(values, stored, scale, form, key, pointer.contents.data, workers, num_workers)
        return
    offset = 0
    for piece in converted_pieces(values, stored, form.dtype, key, workers, num_workers, scale):
        lib.ggml_backend_tensor_set(pointer, piece.ctypes.data, offset, piece.nbytes)
        offset += piece.nbytes
    assert offset == form.nbytes, f"{key}: {offset} bytes for {form.nbytes}"


def _free(context: Any, memory: Memory) -> None:
    memory.free()
    lib.ggml_free(context)
