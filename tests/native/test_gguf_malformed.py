"""Broken GGUF files: each is refused with its name, and what it claims costs nothing."""

from __future__ import annotations

import os
import struct

import pytest
from fuzzing import bounded
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    INT32,
    Q4_0,
    Q4_K,
    Q8_0,
    STRING,
    UINT8,
    UINT32,
    Gguf,
    array,
    entry,
    tensor,
    text,
)

from edgedit.errors import CheckpointError
from edgedit.weights.gguf import GgufFile
from edgedit.weights.sources import open_source

HUGE = (1 << 64) - 1


def aligned_to(value, kind=UINT32, form="<I"):
    return Gguf(entries=[entry("general.alignment", kind, struct.pack(form, value))])


def noted(sizes, count=None):
    """A file whose writer notes another shape of tensor "a"."""
    payload = array(INT32, struct.pack(f"<{len(sizes)}i", *sizes), len(sizes) if count is None else count)
    return Gguf(entries=[entry("comfy.gguf.orig_shape.a", ARRAY, payload)])


def one(ne, kind=F32, offset=0, name="a", **more):
    return Gguf(tensors=[tensor(name, ne, kind, offset, **more)])


EMPTY = Gguf(entries=noted((0, 2**31 - 1, 2**31 - 1, 2**31 - 1)).entries, tensors=[tensor("a", (32, 0), F32, 0)])
BROKEN = {
    "empty file": b"",
    "magic alone": b"GGUF",
    "half a magic": b"GG",
    "other magic": Gguf(magic=b"GGML"),
    "version 1": Gguf(version=1),
    "version to come": Gguf(version=4),
    "big-endian": Gguf(version=3 << 24),
    "more tensors than bytes": Gguf(num_tensors=HUGE),
    "a million tensors": Gguf(num_tensors=10**6),
    "one tensor too many": Gguf(num_tensors=3),
    "more entries than bytes": Gguf(num_entries=HUGE),
    "one entry too many": Gguf(num_entries=2),
    "key longer than the file": Gguf(entries=[text("key", HUGE) + struct.pack("<I", UINT8) + b"\0"]),
    "key longer than any": Gguf(entries=[entry("k" * 70_000, UINT8, b"\0")]),
    "key that is not UTF-8": Gguf(entries=[entry(b"\xff\xfe", UINT8, b"\0")]),
    "key twice": Gguf(entries=[entry("k", UINT8, b"\0")] * 2),
    "value of no type": Gguf(entries=[entry("k", 13, b"\0" * 8)]),
    "string longer than the file": Gguf(entries=[entry("k", STRING, text("v", HUGE))]),
    "string whose length overflows": Gguf(entries=[entry("k", STRING, text("v", (1 << 63) - 1))]),
    "array longer than the file": Gguf(entries=[entry("k", ARRAY, array(UINT8, b"", HUGE))]),
    "array whose bytes overflow": Gguf(entries=[entry("k", ARRAY, array(UINT32, b"", 1 << 62))]),
    "a million strings": Gguf(entries=[entry("k", ARRAY, array(STRING, b"", 10**6))]),
    "array of no type": Gguf(entries=[entry("k", ARRAY, array(99, b"", 1))]),
    "array of arrays": Gguf(entries=[entry("k", ARRAY, array(ARRAY, array(ARRAY, b"", 1), 1))]),
    "arrays nested beyond reason": Gguf(
        entries=[entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 20_000)]
    ),
    "alignment of 0": aligned_to(0),
    "alignment of 3": aligned_to(3),
    "alignment beyond reason": aligned_to(1 << 31),
    "alignment that is a text": Gguf(entries=[entry("general.alignment", STRING, text("32"))]),
    "alignment that is a bool": Gguf(entries=[entry("general.alignment", BOOL, b"\1")]),
    "name longer than the file": Gguf(tensors=[text("a", HUGE) + struct.pack("<IQIQ", 1, 4, F32, 0)]),
    "name that is not UTF-8": one((4,), name=b"\xc0"),
    "name twice": Gguf(tensors=[tensor("a", (32,), F32, 0), tensor("a", (32,), F32, 128)]),
    "no axes": one(()),
    "five axes": one((1, 1, 1, 1, 1)),
    "a billion axes": one((4,), num_dims=10**9),
    "axis beyond reason": one((HUGE,)),
    "axes whose product overflows": one((1 << 32, 1 << 32)),
    "axes whose product is 0 after overflow": one((1 << 33, 1 << 31)),
    "empty tensor beyond reason": one((0, (1 << 39), (1 << 39))),
    "empty blocks beyond reason": one((0, (1 << 39), (1 << 39)), Q8_0),
    "type without a number": one((32,), 1000),
    "negative type": one((32,), (1 << 32) - 1),
    "type that was given up": one((32,), 4),
    "rows that do not fill blocks": one((33, 2), Q4_0),
    "rows that do not fill superblocks": one((32,), Q4_K),
    "tensor longer than the file": one((32, 4)),
    "tensor behind the file": one((32,), offset=1 << 20),
    "offset that overflows": one((32,), offset=HUGE - 31),
    "offset that is not aligned": one((8,), offset=4),
    "tensors that overlap": Gguf(tensors=[tensor("a", (32, 2), F32, 0), tensor("b", (32,), F32, 128)]),
    "the same bytes twice": Gguf(tensors=[tensor("a", (32,), F32, 0), tensor("b", (32,), F32, 0)]),
    "noted shape of other elements": noted((5, 5)),
    "noted shape below zero": noted((-32, -3)),
    "noted shape of an empty tensor": EMPTY,
    "noted shape that is no array": Gguf(entries=[entry("comfy.gguf.orig_shape.a", UINT32, struct.pack("<I", 96))]),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_and_named(tmp_path, case):
    content = bytes(BROKEN[case])
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with bounded(len(content)), pytest.raises(CheckpointError) as error:
        GgufFile(path)
    assert str(path) in str(error.value)


def test_the_file_that_they_were_made_of_is_read(tmp_path):
    path = tmp_path / "whole.gguf"
    path.write_bytes(bytes(Gguf()))
    file = GgufFile(path)
    assert {key: (file.shape(key), file.dtype(key)) for key in file} == {
        "a": ((3, 32), "F32"),
        "b.weight": ((2, 32), "Q8_0"),
    }
    assert file.read("a").tobytes() + file.read("b.weight").tobytes() == Gguf().data[:452]


def test_every_truncation_is_refused(tmp_path):
    whole = bytes(Gguf())
    needed = len(whole) - len(Gguf().data) + 384 + 2 * 34  # what follows is padding
    path = tmp_path / "cut.gguf"
    for length in range(needed):
        path.unlink(missing_ok=True)
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            GgufFile(path)


@pytest.mark.parametrize("name", ["pipe.gguf", "pipe.safetensors", "pipe"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=name):
        open_source(tmp_path / name)


def test_a_directory_is_no_gguf_file(tmp_path):
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(CheckpointError, match="folder.gguf"):
        open_source(tmp_path / "folder.gguf")
