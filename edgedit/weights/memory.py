"""Memory for the tensors of a ggml context, each at an address that kernels can load whole vectors from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from edgedit.errors import GgmlError
from edgedit.graph._ggml import lib

ALIGNMENT = 64


class Memory:
    """One block for all tensors. Raises GgmlError where the system has not enough."""

    def __init__(self, pointers: Iterable[Any]) -> None:
        offsets, self.nbytes = [], 0
        pointers = list(pointers)
        for pointer in pointers:
            offsets.append(self.nbytes)
            self.nbytes += -(-lib.ggml_nbytes(pointer) // ALIGNMENT) * ALIGNMENT
        try:
            self._block = np.empty(self.nbytes + ALIGNMENT, np.uint8)
        except MemoryError:
            raise GgmlError(f"not enough memory for {self.nbytes} bytes of weights") from None
        base = -(-self._block.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._buffer = lib.ggml_backend_cpu_buffer_from_ptr(base, max(self.nbytes, ALIGNMENT))
        for pointer, offset in zip(pointers, offsets, strict=True):
            lib.ggml_backend_tensor_alloc(self._buffer, pointer, base + offset)

    def free(self) -> None:
        """No tensor may be used afterwards."""
        lib.ggml_backend_buffer_free(self._buffer)
        self._block = np.empty(0, np.uint8)
