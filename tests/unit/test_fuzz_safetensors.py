"""Fuzzers of the safetensors reader and of shard indices: whatever the bytes, an error that names the file or tensors
that lie inside it, at a cost in proportion to the file."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import safetensors
from fuzzing import INTERESTING, bounded, fuzz, fuzz_bytes, write
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from edgedit.errors import CheckpointError
from edgedit.weights.checkpoint import Checkpoint
from edgedit.weights.safetensors import ITEMSIZE, NUMPY_TYPE, SafetensorsFile

pytestmark = pytest.mark.timeout(3600)

WHOLE = [
    save({"blocks.0.attn.weight": np.ones((2, 3), np.float32), "b": np.arange(5, dtype=np.float16)}),
    save({"w": np.arange(12, dtype=np.int64).reshape(3, 2, 2)}, metadata={"format": "pt"}),
    save({"empty": np.zeros((0, 4), np.float32), "scalar": np.array(2.5)}),
]
WORDS = [
    *(word.encode() for word in ITEMSIZE),
    b'"dtype"', b'"shape"', b'"data_offsets"', b'"__metadata__"', b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\",
    b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-0", b"0.5", b"-1", b"\\ud800", b"\xff", b"\0", b"[[[[[[[[",
    *(str(number).encode() for number in INTERESTING),
]  # fmt: skip


def framed(header, data=b"", length=None):
    """A file with this header, however wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def with_true_length(content):
    """The header ends where its last brace is."""
    end = content.rfind(b"}") + 1
    return (end - 8).to_bytes(8, "little") + content[8:] if end > 8 else content


sizes = st.one_of(st.integers(0, 4), st.sampled_from([-1, 1.0, True, None, "2", *INTERESTING]))
entries = st.fixed_dictionaries(
    {
        "dtype": st.one_of(st.sampled_from(list(ITEMSIZE)), st.sampled_from(["F31", "", 4, None, ["F32"]])),
        "shape": st.one_of(st.lists(sizes, max_size=4), st.lists(st.just(1), max_size=40), st.none(), sizes),
        "data_offsets": st.one_of(st.lists(sizes, max_size=3), st.none(), sizes),
    },
    optional={"more": st.none()},
)


@st.composite
def tiled(draw):
    """Tensors whose spans follow one another as their shapes say, but for one lie in two files."""
    header, end = {}, 0
    for index in range(draw(st.integers(1, 4))):
        dtype = draw(st.sampled_from(list(ITEMSIZE)))
        shape = draw(st.lists(st.integers(0, 4), max_size=3))
        if 0 in shape:
            shape += draw(st.lists(st.sampled_from(INTERESTING), max_size=3))
        begin, end = end, end + ITEMSIZE[dtype] * math.prod(shape)
        header[f"t{index}"] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    lie = draw(st.sampled_from(["none", "none", "offset", "size", "dtype", "length"]))
    entry = header[draw(st.sampled_from(list(header)))]
    if lie == "offset":
        entry["data_offsets"][draw(st.integers(0, 1))] = draw(sizes)
    elif lie == "size" and entry["shape"]:
        entry["shape"][0] = draw(sizes)
    elif lie == "dtype":
        entry["dtype"] = draw(st.sampled_from(list(ITEMSIZE)))
    length = draw(st.sampled_from(INTERESTING)) if lie == "length" else None
    return framed(header, bytes(end), length)


built = st.one_of(
    tiled(),
    st.builds(
        framed,
        st.dictionaries(st.one_of(st.sampled_from(["a", "b", "__metadata__"]), st.text(max_size=4)), entries),
        st.binary(max_size=64),
    ),
    st.builds(framed, st.binary(max_size=64), st.binary(max_size=16), st.sampled_from([None, *INTERESTING])),
)


@pytest.fixture
def check(tmp_path):
    """What has to hold of any file."""
    path = tmp_path / "fuzzed.safetensors"

    def check(content: bytes) -> None:
        write(path, content)
        with bounded(len(content)):
            try:
                file = SafetensorsFile(path)
                tensors = {name: file.read(name) for name, e in file.entries.items() if e.dtype in NUMPY_TYPE}
            except CheckpointError as error:
                assert str(path) in str(error)
                assert str(error).isprintable()
                return
        begin = np.memmap(path, np.uint8, "r")
        lowest = int.from_bytes(content[:8], "little") + 8
        for name, values in tensors.items():
            entry = file.entries[name]
            assert lowest <= entry.begin <= entry.end <= len(begin)
            assert values.tobytes() == content[entry.begin : entry.end]
        # what is read here, the reference reader reads too
        assert {name for name, _ in safetensors.deserialize(content)} == set(file.entries)

    return check


def test_spoilt_files(check):
    fuzz_bytes(WHOLE, WORDS, check, 0.15, repair=with_true_length)


def test_files_that_lie(check):
    fuzz(built, check, 0.15)


INDEX = json.dumps({"metadata": {"total_size": 28}, "weight_map": {"a": "s1.safetensors", "b": "s2.safetensors"}})
INDEX_WORDS = [b"s1.safetensors", b"../", b"/", b"\\u0000", b"\\u001b", b"/etc/passwd", b".json", *WORDS]


def test_indices(tmp_path):
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "s1.safetensors")
    save_file({"b": np.ones(4, np.float32)}, tmp_path / "s2.safetensors")
    path = tmp_path / "model.safetensors.index.json"

    def check(content: bytes) -> None:
        write(path, content)
        with bounded(len(content)):
            try:
                checkpoint = Checkpoint.open(path)
            except CheckpointError as error:
                assert str(path) in str(error)
                assert str(error).isprintable()
                return
        assert set(checkpoint.keys()) <= {"a", "b"}
        assert all(checkpoint.file(key).parent == tmp_path for key in checkpoint)

    fuzz_bytes([INDEX.encode()], INDEX_WORDS, check, 0.1)
