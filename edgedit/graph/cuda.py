"""Graphs on an NVIDIA device: ggml's CUDA backend, weights in its memory, and the executor that uses both.

Needs ggml-python built with CUDA and the extension edgedit._cuda (`make cuda`); nothing here is imported otherwise.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from edgedit.errors import EdgeditError, GgmlError
from edgedit.graph._ggml import lib
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.executor import Executor
from edgedit.graph.runner import Runner
from edgedit.graph.tensor import WeightTensor
from edgedit.parallel import cuda
from edgedit.parallel.context import ParallelContext


class CudaBackend:
    """ggml's CUDA backend on one device. Raises EdgeditError naming what is missing."""

    def __init__(self, device: int = 0) -> None:
        extension = cuda.usable_extension()
        if not 0 <= device < extension.device_count():
            raise ValueError(f"CUDA device {device}; legal: 0 to {extension.device_count() - 1}")
        self.device = device
        self.name = f"cuda:{device}"
        self.pointer = lib.ggml_backend_init_by_name(f"CUDA{device}".encode(), None)
        if not self.pointer:
            raise EdgeditError(
                "this ggml-python was built without CUDA; reinstall it with CMAKE_ARGS='-DGGML_CUDA=ON "
                "-DGGML_CUDA_GRAPHS=ON' pip install --no-cache-dir --force-reinstall --no-binary ggml-python "
                "ggml-python==0.0.45"
            )
        self._finalizer = weakref.finalize(self, lib.ggml_backend_free, self.pointer)

    @property
    def buffer_type(self) -> Any:
        return lib.ggml_backend_get_default_buffer_type(self.pointer)

    def close(self) -> None:
        """Free the backend; graphs and weights that use it must be closed first."""
        self._finalizer()


class CudaExecutor(Executor):
    """An Executor on a device. Under comm in-graph the whole schedule is enqueued by one call; under graph-cut each
    segment is, and process groups move data in between."""

    _backend: Any

    def __init__(
        self, builder: GraphBuilder, backend: CudaBackend, context: ParallelContext, *, degree: int = 1
    ) -> None:
        super().__init__(builder, backend, context, degree=degree)  # type: ignore[arg-type]

    def _runner_for(self, context: ParallelContext) -> Runner:
        from edgedit.graph.cuda_runner import CudaGraphCutRunner, CudaRunner

        choice = CudaRunner if context.config.comm == "in-graph" else CudaGraphCutRunner
        return choice(self._builder, self._backend, self.schedule, self._groups)


class _Parameter(Protocol):
    tensor: WeightTensor | None


class DeviceWeights:
    """Owns the memory that `to_device` took; parameters are valid for as long as it is open."""

    def __init__(self, context: Any, buffer: Any) -> None:
        self.nbytes: int = lib.ggml_backend_buffer_get_size(buffer)
        self._free = weakref.finalize(self, _free, context, buffer)

    def close(self) -> None:
        """Free the weights now. Safe to call twice."""
        self._free()


def to_device(parameters: Iterable[_Parameter], backend: CudaBackend) -> DeviceWeights:
    """Copy loaded weights to the device and let the parameters stand for the copies; the originals may go.

    Graphs built before keep using the originals. Raises GgmlError when the device has not enough memory.
    """
    loaded = [parameter for parameter in parameters if parameter.tensor is not None]
    size = (len(loaded) + 1) * lib.ggml_tensor_overhead()
    context = lib.ggml_init(lib.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
    if not context:
        raise GgmlError(f"ggml could not create a context for {len(loaded)} weights")
    copies = [lib.ggml_dup_tensor(context, parameter.tensor.pointer) for parameter in loaded]  # type: ignore[union-attr]
    buffer = lib.ggml_backend_alloc_ctx_tensors_from_buft(context, backend.buffer_type)
    if not buffer:
        nbytes = sum(parameter.tensor.nbytes for parameter in loaded if parameter.tensor)
        lib.ggml_free(context)
        raise GgmlError(f"{backend.name} has no memory for {nbytes / 2**20:.0f} MiB of weights")
    for parameter, copy in zip(loaded, copies, strict=True):
        tensor = parameter.tensor
        assert tensor is not None
        lib.ggml_backend_tensor_set(copy, ctypes.c_void_p(tensor.pointer.contents.data), 0, tensor.nbytes)
        parameter.tensor = WeightTensor(copy, tensor.shape, tensor.dtype, tensor.name, tensor.nbytes)
    return DeviceWeights(context, buffer)


def _free(context: Any, buffer: Any) -> None:
    lib.ggml_backend_buffer_free(buffer)
    lib.ggml_free(context)
