"""Custom nodes of ggml as it keeps them: a function, the number of its tasks, and user data."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from edgedit.graph._ggml import lib

_PARAMETERS = struct.Struct("Pi4xP")


def parameters(tensor: Any) -> tuple[int, int, int]:
    """Function, number of tasks and user data of a custom node."""
    return _PARAMETERS.unpack(ctypes.string_at(_address(tensor), _PARAMETERS.size))


def patch(tensor: Any, function: int, userdata: int, tasks: int = 1) -> None:
    """Let a custom node call `function` from now on."""
    packed = _PARAMETERS.pack(function, tasks, userdata)
    ctypes.memmove(_address(tensor), packed, len(packed))


def _address(tensor: Any) -> int:
    return ctypes.addressof(tensor.contents) + lib.ggml_tensor.op_params.offset
