"""Fills a module's parameters from a checkpoint, converted once to the types they are computed in."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedit.errors import CheckpointError, GgmlError
from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.tensor import WeightTensor, ne_of
from edgedit.host import usable_cores
from edgedit.weights.checkpoint import Checkpoint, listing
from edgedit.weights.convert import check_compute_dtype, converted_pieces, fitting_type

if TYPE_CHECKING:
    from edgedit.models.module import Module, Parameter

Rename = Callable[[str], "str | None"]
Progress = Callable[[int, int], None]


class WeightStore:
    """Owns the memory of a module's weights; parameters are valid for as long as it is open."""

    def __init__(self, context: Any, buffer: Any) -> None:
        self.nbytes: int = lib.ggml_backend_buffer_get_size(buffer) if buffer else 0
        self._free = weakref.finalize(self, _free, context, buffer)

    def close(self) -> None:
        """Free the weights now. Safe to call twice."""
        self._free()


def load(
    module: Module,
    checkpoint: Checkpoint,
    compute_dtype: str = "f32",
    rename: Rename | None = None,
    ignore: Iterable[str] = (),
    progress: Progress | None = None,
) -> WeightStore:
    """Compare names and shapes, then read every weight once into one buffer.

    Two-dimensional weights of linear layers take `compute_dtype` (f16 where their rows do not fill the blocks of a
    quantised type), everything else f32. Nothing is allocated before all names, shapes and types were found right,
    and no more than a piece of a tensor is held besides the checkpoint's mapping and the result.

    Args:
        rename: checkpoint key to parameter name; None for a key that is not needed. Two keys may lead to one
            parameter (tied weights) if their values are the same.
        ignore: shell-style patterns of further keys that are not needed.
        progress: called with (bytes done, bytes in all) after each tensor.

    Raises:
        ValueError: if the compute dtype is unknown.
        CheckpointError: listing missing, unknown and misshapen tensors, or naming one that cannot be converted.
    """
    check_compute_dtype(compute_dtype)
    parameters = dict(module.named_parameters())
    keys = _match(parameters, checkpoint, rename, tuple(ignore), type(module).__name__)
    dtypes = {name: memory_type(parameter, compute_dtype) for name, parameter in parameters.items()}

    context, pointers = declare(parameters, dtypes)
    buffer = lib.ggml_backend_alloc_ctx_tensors_from_buft(context, lib.ggml_backend_cpu_buffer_type())
    store = WeightStore(context, buffer)
    if not buffer and any(np.prod(parameter.shape) > 0 for parameter in parameters.values()):
        store.close()
        raise GgmlError(f"{checkpoint.path}: not enough memory for its weights as {compute_dtype}")

    total, done = sum(lib.ggml_nbytes(pointer) for pointer in pointers.values()), 0
    cores = usable_cores()
    try:
        with ThreadPoolExecutor(cores) as workers:
            for name, pointer in pointers.items():
                done += _fill(pointer, checkpoint, keys[name], dtypes[name], workers, cores)
                if progress:
                    progress(done, total)
    except BaseException:
        store.close()
        raise
    for name, parameter in parameters.items():
        nbytes = lib.ggml_nbytes(pointers[name])
        parameter.tensor = WeightTensor(pointers[name], parameter.shape, dtypes[name], name, nbytes)
    return store


def _match(
    parameters: Mapping[str, Parameter],
    checkpoint: Checkpoint,
    rename: Rename | None,
    ignore: tuple[str, ...],
    needed_by: str,
) -> dict[str, str]:
    """Checkpoint key of each parameter; raises unless every name and shape fits."""
    claims: dict[str, list[str]] = {}
    unknown, misshapen = [], []
    for key in checkpoint:
        name = rename(key) if rename else key
        if name is None or any(fnmatchcase(key, pattern) for pattern in ignore):
            continue
        if name not in parameters:
            unknown.append(key)
            continue
        claims.setdefault(name, []).append(key)
        if checkpoint.shape(key) != parameters[name].shape:
            misshapen.append(f"{key} is {list(checkpoint.shape(key))} for {list(parameters[name].shape)}")
        checkpoint.float_type(key)
    missing = [name for name in parameters if name not in claims]
    problems = {"missing": missing, "unknown": unknown, "misshapen": misshapen}
    if any(problems.values()):
        text = "; ".join(
            f"{len(names)} {kind}: {listing(names)}" for kind, names in problems.items() if names
        )
        raise CheckpointError(f"{checkpoint.path}: does not hold the weights of {needed_by}: {text}")
    for name, keys in claims.items():
        for other in keys[1:]:
            if not _same_values(checkpoint, keys[0], other):
                raise CheckpointError(
                    f"{checkpoint.path}: {keys[0]} and {other} both stand for {name} and differ"
                )
    return {name: keys[0] for name, keys in claims.items()}


def _same_values(checkpoint: Checkpoint, key: str, other: str) -> bool:
    if checkpoint.dtype(key) == checkpoint.dtype(other):
        return np.array_equal(checkpoint.read(key), checkpoint.read(other))
    return np.array_equal(checkpoint.as_f32(key), checkpoint.as_f32(other))


def memory_type(parameter: Parameter, compute_dtype: str) -> str:
    """ggml type that a parameter has in memory."""
    if parameter.role != "linear" or len(parameter.shape) != 2:
        return "f32"
    return fitting_type(parameter.shape, compute_dtype)


def declare(parameters: Mapping[str, Parameter], dtypes: Mapping[str, str]) -> tuple[Any, dict[str, Any]]:
    """A ggml context and its tensors, without memory yet."""
    size = (len(parameters) + 1) * lib.ggml_tensor_overhead()
    context = lib.ggml_init(lib.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
    if not context:
        raise GgmlError(f"ggml could not create a context for {len(parameters)} weights")
    pointers = {}
    for name, parameter in parameters.items():
        type_id = _ggml.TYPE_IDS[dtypes[name]]
        pointers[name] = lib.ggml_new_tensor_4d(context, type_id, *ne_of(parameter.shape))
        lib.ggml_set_name(pointers[name], name[-63:].encode())
    return context, pointers


def _fill(
    pointer: Any, checkpoint: Checkpoint, key: str, dtype: str, workers: Executor, num_workers: int
) -> int:
    """Convert one tensor into its place; returns its bytes."""
    offset = 0
    for piece in converted_pieces(
        checkpoint.read(key), checkpoint.dtype(key), dtype, key, workers, num_workers
    ):
        lib.ggml_backend_tensor_set(pointer, piece.ctypes.data, offset, piece.nbytes)
        offset += piece.nbytes
    assert offset == lib.ggml_nbytes(pointer), f"{key}: {offset} bytes for {lib.ggml_nbytes(pointer)}"
    return offset


def _free(context: Any, buffer: Any) -> None:
    if buffer:
        lib.ggml_backend_buffer_free(buffer)
    lib.ggml_free(context)
