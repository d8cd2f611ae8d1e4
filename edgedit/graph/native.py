"""Callbacks of edgedit's own ggml nodes, as C functions of the compiled extension."""

from __future__ import annotations

import ctypes

from edgedit import _native
from edgedit.errors import GgmlError
from edgedit.graph._ggml import lib

for _field, _offset in _native.ops.tensor_offsets().items():
    if getattr(lib.ggml_tensor, _field).offset != _offset:
        raise GgmlError(f"edgedit was built for another layout of ggml's tensors ({_field} is elsewhere)")

# `write` fills the memory of an `empty` node; the node itself has nothing to do.
NO_OPERATION = ctypes.cast(_native.no_operation, lib.ggml_custom_op_t)

# The executor cuts collectives out of what ggml runs; reaching one means that the cut is wrong.
COLLECTIVE_PLACEHOLDER = ctypes.cast(_native.collective_placeholder, lib.ggml_custom_op_t)
