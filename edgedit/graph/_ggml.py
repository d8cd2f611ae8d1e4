"""ggml-python, loaded, checked and mended in one place.

Everything that edgedit needs of ggml goes through `lib` (the `ggml.ggml` module). Two facts make this module
necessary: edgedit relies on layouts that only hold for one release (graph views passed by value, tensor fields),
and four functions of ggml-python 0.0.45 declare a return type that truncates pointers to 32 bits.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from edgedit.errors import GgmlError
from edgedit.host import rest_waiting_threads

GGML_PYTHON_VERSION = "0.0.45"
GGML_VERSION = "0.15.3"

# A failed ggml assertion ends the process; without this it first starts gdb for a backtrace.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
rest_waiting_threads(os.environ)

try:
    from ggml import ggml as lib
except (ImportError, OSError) as error:
    raise GgmlError(
        f"ggml-python could not be loaded ({error}); edgedit needs ggml-python=={GGML_PYTHON_VERSION}"
    ) from error


def _check_release() -> None:
    try:
        installed = version("ggml-python")
    except PackageNotFoundError:
        installed = "unknown"
    native = lib.ggml_version().decode()
    if installed != GGML_PYTHON_VERSION or native != GGML_VERSION:
        raise GgmlError(
            f"edgedit needs ggml-python=={GGML_PYTHON_VERSION} (ggml {GGML_VERSION}), because it relies on that "
            f"release's layouts; installed is ggml-python {installed} (ggml {native})"
        )


def _mend_return_types() -> None:
    for name in (
        "ggml_backend_cpu_buffer_type",
        "ggml_backend_cpu_buffer_from_ptr",
        "ggml_backend_alloc_buffer",
        "ggml_backend_sched_get_tensor_backend",
    ):
        getattr(lib, name).restype = ctypes.c_void_p


_check_release()
_mend_return_types()

def _decodable_types() -> dict[str, int]:
    """ggml's quantised types that it can turn back into f32, by their names in lower case."""
    types = {}
    for type_id in range(lib.GGML_TYPE_COUNT):
        traits = lib.ggml_get_type_traits(type_id).contents
        if traits.is_quantized and traits.to_float:
            types[lib.ggml_type_name(type_id).decode().lower()] = type_id
    return types


QUANTISED_IDS = _decodable_types()
TYPE_IDS: dict[str, int] = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "bf16": lib.GGML_TYPE_BF16,
    "i8": lib.GGML_TYPE_I8,
    "i32": lib.GGML_TYPE_I32,
    **QUANTISED_IDS,
}
TYPE_NAMES = {value: name for name, value in TYPE_IDS.items()}


@cache
def op_name(op: int) -> str:
    """Lower-case name of a GGML_OP_* value, such as "mul_mat"."""
    return lib.ggml_op_name(op).decode().lower()


def row_nbytes(dtype: str, columns: int) -> int:
    """Bytes of one row of `columns` elements; quantised types need whole blocks."""
    return lib.ggml_row_size(TYPE_IDS[dtype], columns)


def block_size(dtype: str) -> int:
    """Elements per block: 1 for plain types, 32 or 256 for quantised ones."""
    return lib.ggml_blck_size(TYPE_IDS[dtype])


def silence_log() -> None:
    """Drop ggml's informational log lines; errors still reach stderr through its abort message."""
    lib.ggml_log_set(_DROP_LOG, None)


_DROP_LOG = lib.ggml_log_callback(lambda level, text, user_data: None)
silence_log()
