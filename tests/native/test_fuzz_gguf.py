"""Fuzzers of the GGUF reader: whatever the bytes, an error that names the file or tensors that lie inside it, at a
cost in proportion to the file; and decoders that stay inside a tensor whatever its blocks hold."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from itertools import pairwise

import gguf
import pytest
from fuzzing import INTERESTING, bounded, fuzz, fuzz_bytes, write
from gguf_bytes import (
    ARRAY,
    F16,
    F32,
    FLOAT32,
    INT32,
    Q4_K,
    Q8_0,
    STRING,
    UINT8,
    UINT32,
    UINT64,
    Gguf,
    array,
    entry,
    tensor,
    text,
)
from hypothesis import strategies as st

from edgedit.errors import CheckpointError
from edgedit.graph import _ggml
from edgedit.weights.gguf import GgufFile

pytestmark = pytest.mark.timeout(3600)

WHOLE = [
    bytes(Gguf()),
    bytes(
        Gguf(
            entries=[
                entry("general.alignment", UINT32, struct.pack("<I", 64)),
                entry("k", ARRAY, array(STRING, text("one") + text("two"), 2)),
                entry("comfy.gguf.orig_shape.w", ARRAY, array(INT32, struct.pack("<3i", 1, 2, 256), 3)),
            ],
            tensors=[tensor("w", (256, 2), Q4_K, 0), tensor("h", (3, 1, 2), F16, 320)],
            data=bytes(range(256)) * 2,
            alignment=64,
        )
    ),
    bytes(Gguf(entries=[entry("f", FLOAT32, struct.pack("<f", 1.5))], tensors=[tensor("q", (32, 2, 2), Q8_0, 0)])),
]  # fmt: skip
WORDS = [
    b"GGUF", b"GGML", b"\0", b"\xff", b"general.alignment", b"comfy.gguf.orig_shape.a", b"a", b"b.weight",
    *(struct.pack("<I", number) for number in (*range(42), 99, 1 << 31, (1 << 32) - 1)),
    *(struct.pack("<Q", number) for number in INTERESTING),
]  # fmt: skip


@pytest.fixture
def check(tmp_path):
    """What has to hold of any file."""
    path = tmp_path / "fuzzed.gguf"

    def check(content: bytes) -> None:
        write(path, content)
        with bounded(len(content)):
            try:
                file = GgufFile(path)
                tensors = {key: file.read(key) for key in file}
            except CheckpointError as error:
                assert str(path) in str(error)
                assert str(error).isprintable()
                return
        spans = sorted((entry.begin, entry.end) for entry in file.entries.values() if entry.nbytes)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans)), "tensors overlap"
        for key, values in tensors.items():
            entry = file.entries[key]
            assert 24 <= entry.begin <= entry.end <= len(content)
            assert values.tobytes() == content[entry.begin : entry.end]
            if values.size and file.dtype(key).lower() in _ggml.QUANTISED_IDS:
                assert file.as_f32(key).shape == file.shape(key)

    return check


def test_spoilt_files(check):
    fuzz_bytes(WHOLE, WORDS, check, 0.2)


numbers = st.one_of(st.integers(0, 300), st.sampled_from(INTERESTING))
words = numbers.map(lambda number: number % (1 << 32))
texts = st.builds(text, st.binary(max_size=9), st.one_of(st.none(), st.none(), numbers))
scalars = st.builds(
    lambda number, width: number.to_bytes(8, "little")[:width], numbers, st.sampled_from([1, 2, 4, 8])
)
several = st.one_of(st.lists(scalars, max_size=6), st.lists(texts, max_size=3)).map(b"".join)
arrays = st.builds(array, st.one_of(st.integers(0, 13), words), several, st.one_of(st.integers(0, 8), numbers))
keys = st.sampled_from(["a", "b", "general.alignment", "comfy.gguf.orig_shape.t0", b"\xff"])
kinds = st.sampled_from([UINT8, UINT32, INT32, FLOAT32, STRING, ARRAY, UINT64, 13, 1 << 31])
entries = st.builds(entry, keys, kinds, st.one_of(scalars, texts, arrays))
TYPES = {
    kind: (_ggml.lib.ggml_blck_size(kind), _ggml.lib.ggml_type_size(kind))
    for kind in [F32, F16, *_ggml.QUANTISED_IDS.values()]
}


@st.composite
def files(draw, lies):
    """Right in every respect, of any types and shapes, but for `lies`."""
    tensors, data = [], b""
    for index in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(list(TYPES)))
        block, nbytes = TYPES[kind]
        ne = [block * draw(st.integers(1, 3)), *draw(st.lists(st.integers(1, 3), max_size=3))]
        tensors.append([f"t{index}", ne, kind, len(data), None])
        data += draw(st.binary(min_size=1, max_size=1)) * (math.prod(ne) // block * nbytes)
        data += bytes(-len(data) % 32)
    lie = draw(st.sampled_from(lies))
    which = draw(st.sampled_from(tensors))
    if lie == "name":
        which[0] = draw(st.one_of(st.just("t0"), st.binary(max_size=80)))
    elif lie == "size":
        which[1][draw(st.integers(0, len(which[1]) - 1))] = draw(numbers)
    elif lie == "empty":
        which[1] = [draw(st.sampled_from([0, 32, 256, *INTERESTING])) for _ in range(draw(st.integers(1, 4)))]
    elif lie in ("type", "dims", "offset"):
        which[{"type": 2, "offset": 3, "dims": 4}[lie]] = draw(numbers if lie == "offset" else words)
    more = {"count": {draw(st.sampled_from(["num_tensors", "num_entries"])): draw(numbers)}}.get(lie, {})
    if lie == "entries":
        more = {"entries": draw(st.lists(entries, max_size=3))}
    cut = draw(st.integers(0, len(data))) if lie == "cut" else len(data)
    return bytes(Gguf(tensors=[tensor(*fields) for fields in tensors], data=data[:cut], **more))


def test_files_that_lie(check):
    lies = ["name", "size", "empty", "type", "dims", "offset", "count", "entries", "cut"]
    fuzz(files(lies), check, 0.15)


def test_whole_files_are_read_as_the_reference_reader_reads_them(tmp_path):
    path = tmp_path / "whole.gguf"

    def check(content: bytes) -> None:
        write(path, content)
        file = GgufFile(path)
        reference = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        assert set(reference) == set(file)
        for key, expected in reference.items():
            assert file.shape(key) == tuple(int(size) for size in reversed(expected.shape))
            assert file.read(key).tobytes() == expected.data.tobytes()
            assert file.entries[key].type_id == expected.tensor_type

    fuzz(files(["none"]), check, 0.05)


DECODE_BESIDE_A_WALL = """
import ctypes, mmap
import numpy as np
from edgedit.graph import _ggml

libc, page, rows = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE, 3
for name, type_id in _ggml.QUANTISED_IDS.items():
    nbytes = rows * _ggml.row_nbytes(name, 256)
    wall = -(-nbytes // page) * page
    memory = mmap.mmap(-1, wall + page)
    begin = np.frombuffer(memory, np.uint8).ctypes.data
    assert libc.mprotect(ctypes.c_void_p(begin + wall), page, 0) == 0
    blocks = np.frombuffer(memory, np.uint8, nbytes, wall - nbytes)
    values = np.full(rows * 256 + 16, 7, np.float32)
    convert = _ggml.lib.ggml_get_type_traits(type_id).contents.to_float
    for filling in (0, 255, *range(8)):
        blocks[:] = np.random.default_rng(filling).integers(0, 256, nbytes) if filling % 255 else filling
        convert(blocks.ctypes.data, values.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), rows * 256)
        assert (values[-16:] == 7).all(), name
    print(name)
"""


def test_decoders_stay_inside_the_blocks_whatever_these_hold():
    """Every type's blocks stand right before memory that cannot be read, in a process that may die of it."""
    done = subprocess.run([sys.executable, "-c", DECODE_BESIDE_A_WALL], capture_output=True, text=True)
    assert done.returncode == 0, f"after {done.stdout.split()[-1:]}: {done.stderr}"
    assert {"q8_0", "q4_k", "iq1_s"} <= set(done.stdout.split())


def test_the_wall_is_one():
    """The same a byte further."""
    beyond = DECODE_BESIDE_A_WALL.replace("np.uint8, nbytes, wall - nbytes", "np.uint8, nbytes - 1, wall - nbytes + 1")
    assert beyond != DECODE_BESIDE_A_WALL
    assert subprocess.run([sys.executable, "-c", beyond], capture_output=True).returncode < 0
