"""The ggml backend that runs a rank's graphs."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from edgedit.errors import GgmlError
from edgedit.graph._ggml import lib


class CpuBackend:
    """ggml's CPU backend with a fixed number of threads. Raises ValueError for fewer than one."""

    def __init__(self, threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"threads is {threads}; at least 1 is needed")
        self.threads = threads
        self.pointer = lib.ggml_backend_cpu_init()
        if not self.pointer:
            raise GgmlError("ggml could not start its CPU backend")
        lib.ggml_backend_cpu_set_n_threads(self.pointer, threads)
        self._finalizer = weakref.finalize(self, lib.ggml_backend_free, self.pointer)

    @property
    def buffer_type(self) -> Any:
        return lib.ggml_backend_get_default_buffer_type(self.pointer)

    def compute(self, graph: Any, name: str, abort: tuple[int, int] | None = None) -> bool:
        """Run a graph (a pointer) or a view of one. Raises GgmlError, with the graph's name, when ggml cannot.

        `abort` is the address of a C function and of its argument; ggml asks it after every node whether to stop.
        False is returned when it did.
        """
        callback, data = abort or (0, 0)
        lib.ggml_backend_cpu_set_abort_callback(
            self.pointer, ctypes.cast(callback, lib.ggml_abort_callback), data
        )
        pointer = ctypes.pointer(graph) if isinstance(graph, ctypes.Structure) else graph
        status = lib.ggml_backend_graph_compute(self.pointer, pointer)
        if status != lib.GGML_STATUS_SUCCESS and not (abort and status == lib.GGML_STATUS_ABORTED):
            raise GgmlError(f"graph {name}: ggml ended with status {status}")
        return status == lib.GGML_STATUS_SUCCESS

    def close(self) -> None:
        """Free the backend; graphs and weights that use it must be closed first."""
        self._finalizer()
