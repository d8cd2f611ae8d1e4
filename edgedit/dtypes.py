"""Element types of activations and messages, by the names used everywhere in edgedit."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy


class DType(NamedTuple):
    itemsize: int
    numpy_name: str  # bf16 travels as its bits; it is the only 16-bit type that numpy sees as uint16


DTYPES: dict[str, DType] = {
    "f32": DType(4, "float32"),
    "f16": DType(2, "float16"),
    "bf16": DType(2, "uint16"),
    "i32": DType(4, "int32"),
    "u8": DType(1, "uint8"),
    "i8": DType(1, "int8"),
    "f64": DType(8, "float64"),
    "i64": DType(8, "int64"),
}
# Position in this table is what crosses the wire, so names are only ever appended.
CODES: tuple[str, ...] = tuple(DTYPES)


def check(name: str) -> str:
    """Return `name`, or raise `ValueError` listing the legal ones."""
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}; legal: {', '.join(DTYPES)}")
    return name


def itemsize(name: str) -> int:
    """Bytes per element. Raises `ValueError` for an unknown name."""
    return DTYPES[check(name)].itemsize


def to_numpy(name: str) -> numpy.dtype:
    """The numpy type that holds `name` (`bf16` as its bits, uint16)."""
    import numpy

    return numpy.dtype(DTYPES[check(name)].numpy_name)


def from_numpy(dtype: numpy.dtype) -> str:
    """The name of a numpy type (uint16 means bf16 bits). Raises `ValueError` for a type that has none."""
    import numpy

    numpy_name = numpy.dtype(dtype).name
    for name, entry in DTYPES.items():
        if entry.numpy_name == numpy_name:
            return name
    raise ValueError(
        f"numpy dtype {numpy_name} has no edgedit name; legal: {', '.join(DTYPES)} (bf16 as uint16)"
    )


def bf16_to_f32(bits: numpy.ndarray) -> numpy.ndarray:
    """Widen bf16 bits (uint16, any shape) to float32; exact."""
    import numpy

    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


def f32_to_bf16(values: numpy.ndarray) -> numpy.ndarray:
    """Round float32 to bf16 bits (uint16), to nearest even; NaN stays NaN."""
    import numpy

    values = numpy.ascontiguousarray(values, dtype=numpy.float32)
    bits = values.view(numpy.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet_nan = (bits >> 16) | 0x40
    return numpy.where(numpy.isnan(values), quiet_nan, rounded).astype(numpy.uint16)
