"""The ggml backend that runs a rank's graphs."""

from __future__ import annotations

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

    def close(self) -> None:
        """Free the backend; graphs and weights that use it must be closed first."""
        self._finalizer()
