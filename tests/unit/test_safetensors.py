"""The safetensors reader: what it reads, and that every broken promise of a header is refused with the file's name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from edgedit.errors import CheckpointError
from edgedit.weights.safetensors import SafetensorsFile


def write(path, header, data=b"", length=None):
    """A file with exactly this header (dict or raw bytes) and data, however wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(begin, end, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_values_of_every_numpy_type_equal_those_written_by_the_reference_writer(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        dtype: (rng.standard_normal((3, 5)) * 50).astype(dtype)
        for dtype in ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
    }
    tensors |= {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 4), np.float32)}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "np"})
    file = SafetensorsFile(tmp_path / "a.safetensors")
    assert set(file.entries) == set(tensors)
    assert file.metadata == {"format": "np"}
    for name, expected in tensors.items():
        assert file.read(name).dtype == expected.dtype
        np.testing.assert_array_equal(file.read(name), expected)


def test_bf16_arrives_as_its_bits(tmp_path):
    bits = np.array([0x3F80, 0xC000], dtype="<u2")
    path = write(tmp_path / "a.safetensors", {"w": entry(0, 4, dtype="BF16")}, bits.tobytes())
    np.testing.assert_array_equal(SafetensorsFile(path).read("w"), bits)


def test_tensors_behind_a_header_of_odd_length_are_read(tmp_path):
    values = np.arange(4, dtype=np.float32)
    header = json.dumps({"w": entry(0, 16, (2, 2))}).encode()
    path = write(tmp_path / "a.safetensors", header + b" " * (1 - len(header) % 2), values.tobytes())
    np.testing.assert_array_equal(SafetensorsFile(path).read("w"), values.reshape(2, 2))


def test_values_cannot_be_written_through(tmp_path):
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="read-only"):
        SafetensorsFile(tmp_path / "a.safetensors").read("w")[0] = 2


def test_reading_costs_no_memory_before_a_value_is_used(tmp_path):
    save_file({"w": np.ones(1000, np.float32)}, tmp_path / "a.safetensors")
    values = SafetensorsFile(tmp_path / "a.safetensors").read("w")
    base = values
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


BROKEN = {
    "empty file": (b"", None, "truncated or empty"),
    "header length beyond the file": ({}, 10**6, "header length 1000000"),
    "absurd header length": ({}, 2**63, "header length"),
    "header that is not an object": (b"[1, 2]", None, "does not begin with"),
    "header that is not JSON": (b"{nonsense", None, "malformed header"),
    "header that is not UTF-8": (b'{"\xff\xfe": 1}', None, "malformed header"),
    "header nested beyond reason": (b'{"a":' + b"[" * 100_000, None, "malformed header"),
    "duplicate tensor": (b'{"w": 1, "w": 2}', None, "duplicate keys 'w'"),
    "entry that is not an object": ({"w": 7}, None, "must have exactly"),
    "entry without offsets": ({"w": {"dtype": "F32", "shape": [2]}}, None, "must have exactly"),
    "entry with a field too many": ({"w": entry(0, 8) | {"code": ""}}, None, "must have exactly"),
    "unknown dtype": ({"w": entry(0, 8, dtype="F31")}, None, "unknown dtype 'F31'"),
    "dtype that is no string": ({"w": entry(0, 8, dtype=["F32"])}, None, "unknown dtype"),
    "negative size": ({"w": entry(0, 8, (-2,))}, None, "shape"),
    "size that is a float": ({"w": entry(0, 8, (2.0,))}, None, "shape"),
    "size that is a bool": ({"w": entry(0, 4, (True,))}, None, "shape"),
    "size beyond reason": ({"w": entry(0, 0, (0, 2**70))}, None, "shape"),
    "empty tensor beyond reason": ({"w": entry(0, 0, (0, 2**39, 2**39))}, None, "beyond what can be addressed"),
    "name that is half a character": (b'{"\\ud800": 1}', None, "malformed header"),
    "too many dimensions": ({"w": entry(0, 4, (1,) * 9)}, None, "at most 8 sizes"),
    "offsets that are no pair": ({"w": entry(0, 8) | {"data_offsets": [0, 4, 8]}}, None, "not two integers"),
    "offsets that descend": ({"w": entry(8, 0)}, None, "not an ascending span"),
    "negative offset": ({"w": entry(-8, 0)}, None, "not an ascending span"),
    "span that disagrees with the shape": (
        {"w": entry(0, 4)},
        None,
        r"takes 8 bytes but data_offsets span 4",
    ),
    "span beyond the file": ({"w": entry(0, 16, (4,))}, None, "ends at byte"),
    "overlap": ({"a": entry(0, 8), "b": entry(4, 12)}, None, "'a' and 'b' overlap"),
    "same bytes twice": ({"a": entry(0, 8), "b": entry(0, 8)}, None, "overlap"),
    "hole": (
        {"a": entry(0, 4, (1,)), "b": entry(8, 12, (1,))},
        None,
        "4 bytes before tensor 'b' belong to none",
    ),
    "bytes left over": ({"a": entry(0, 8)}, None, "4 bytes after the last tensor"),
    "metadata that is no map": ({"__metadata__": [1], "a": entry(0, 12, (3,))}, None, "__metadata__"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_and_named(tmp_path, case):
    header, length, message = BROKEN[case]
    path = tmp_path / "broken.safetensors"
    if case == "empty file":
        path.write_bytes(b"")
    else:
        write(path, header, b"\0" * 12, length)
    with pytest.raises(CheckpointError, match=message) as error:
        SafetensorsFile(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing\.safetensors: cannot be read"):
        SafetensorsFile(tmp_path / "nothing.safetensors")


def test_every_truncation_is_refused(tmp_path):
    save_file({"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.float16)}, tmp_path / "a.safetensors")
    whole = (tmp_path / "a.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            SafetensorsFile(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 200), byte=st.integers(0, 255))
def test_a_damaged_byte_is_refused_or_leaves_every_tensor_inside_the_file(tmp_path, position, byte):
    save_file({"a": np.ones((2, 3), np.float32), "b": np.ones(5, np.float16)}, tmp_path / "a.safetensors")
    content = bytearray((tmp_path / "a.safetensors").read_bytes())
    content[position % len(content)] = byte
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    try:
        file = SafetensorsFile(path)
    except CheckpointError:
        return
    for name, tensor in file.entries.items():
        assert file.read(name).nbytes == tensor.nbytes
