"""GGUF files as the `gguf` library writes them: what is read, and how weights of every type are used in place."""

from __future__ import annotations

from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from graph_runner import run_graph

from edgedit import _native
from edgedit.dtypes import bf16_to_f32, f32_to_bf16
from edgedit.errors import CheckpointError
from edgedit.graph._ggml import QUANTISED_IDS
from edgedit.models.layers import Linear
from edgedit.models.sd3_blocks import PatchProjection
from edgedit.weights.convert import AUTO, main_dtype
from edgedit.weights.gguf import GgufFile
from edgedit.weights.loader import load
from edgedit.weights.sources import Together, open_source

FAMILIES = (*_native.kernels.families(), "ggml")
# Types of which the library has no decoder of its own.
UNDECODED = {"q1_0"}
TYPES = sorted(set(QUANTISED_IDS) - UNDECODED)


def write(path, tensors, raw=None, **metadata):
    """A file of arrays, and of blocks as (uint8 [rows, bytes], type)."""
    writer = gguf.GGUFWriter(path, "flux")
    for key, value in metadata.items():
        {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}[type(value)](key, value)
    for key, values in tensors.items():
        writer.add_tensor(key, values)
    for key, (blocks, dtype) in (raw or {}).items():
        writer.add_tensor(key, blocks, raw_dtype=gguf.GGMLQuantizationType[dtype.upper()])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(dtype, rows, columns=512):
    """Blocks whose values the library decodes to moderate sizes, and these values."""
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    per_block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(QUANTISED_IDS[dtype])
    found = np.empty((0, nbytes), np.uint8)
    needed = rows * columns // per_block
    while len(found) < needed:
        blocks = rng.integers(0, 256, (4 * needed, nbytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            largest = np.abs(gguf.dequantize(blocks, kind)).max(axis=1)
        found = np.concatenate([found, blocks[(largest > 1e-2) & (largest < 30)]])  # False for NaN
    blocks = found[:needed].reshape(rows, -1)
    return blocks, gguf.dequantize(blocks, kind)


def test_plain_types_and_metadata(tmp_path):
    values = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
    integers = np.arange(5, dtype=np.int32)
    tensors = {"f32": values, "f16": values.astype(np.float16), "i32": integers}
    bits = f32_to_bf16(values[0])
    path = write(
        tmp_path / "a.gguf", tensors, {"bf16": (bits.view(np.uint8), "bf16")},
        name="a name", number=7, words=["a", "bc"],
    )  # fmt: skip
    source = open_source(path)
    assert isinstance(source, GgufFile)
    assert source.keys() == ["f32", "f16", "i32", "bf16"]
    assert [source.dtype(key) for key in source] == ["F32", "F16", "I32", "BF16"]
    assert source.shape("f32") == (2, 3, 4)
    np.testing.assert_array_equal(source.read("f32"), values)
    np.testing.assert_array_equal(source.as_f32("f16"), values.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(source.as_f32("bf16"), bf16_to_f32(bits))
    assert not source.read("f32").flags.writeable
    assert source.metadata["general.architecture"] == "flux"
    assert (source.metadata["name"], source.metadata["number"]) == ("a name", 7)
    assert source.metadata["words"] == ["a", "bc"]
    assert source.nbytes == sum(source.read(key).nbytes for key in source)
    with pytest.raises(CheckpointError, match="type I32"):
        source.as_f32("i32")


def test_a_name_without_its_ending_is_told_by_its_content(tmp_path):
    path = write(tmp_path / "weights.bin", {"a": np.ones(3, np.float32)})
    assert open_source(path).keys() == ["a"]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_quantised_type_is_decoded_as_the_library_does(tmp_path, dtype):
    blocks, values = random_blocks(dtype, 4)
    source = open_source(write(tmp_path / "a.gguf", {}, {"w": (blocks, dtype)}))
    assert (source.shape("w"), source.dtype("w"), source.natural_dtype("w")) == ((4, 512), dtype.upper(), dtype)
    np.testing.assert_array_equal(source.read("w"), blocks)
    np.testing.assert_allclose(source.as_f32("w"), values, rtol=1e-5, atol=1e-6)


def linear(source, kernels):
    """A layer of the only tensor of a source, in the type that it is stored in."""
    layer = Linear(512, 12, bias=False)
    return layer, load(layer, source, AUTO, kernels=kernels)


@pytest.mark.parametrize("kernels", FAMILIES)
@pytest.mark.parametrize("dtype", TYPES)
def test_weights_of_every_type_are_multiplied_as_they_stand(tmp_path, dtype, kernels):
    blocks, values = random_blocks(dtype, 12)
    source = open_source(write(tmp_path / "a.gguf", {}, {"weight": (blocks, dtype)}))
    assert main_dtype(source, AUTO) == dtype
    layer, _store = linear(source, kernels)
    assert layer.weight.tensor.dtype == dtype
    assert layer.weight.tensor.nbytes == blocks.nbytes
    x = np.random.default_rng(1).standard_normal((5, 512), dtype=np.float32)
    y = run_graph(lambda b, t: layer(b, t), x, kernels=kernels, compute_dtype=dtype)
    expected = x @ values.T
    assert np.abs(y - expected).max() < 0.03 * np.abs(expected).max()


def test_a_file_that_notes_a_shape_has_it(tmp_path):
    values = np.arange(24, dtype=np.float32)
    path = write(tmp_path / "a.gguf", {"w": values.reshape(6, 4)}, **{"comfy.gguf.orig_shape.w": [1, 2, 3, 4]})
    np.testing.assert_array_equal(open_source(path).read("w"), values.reshape(1, 2, 3, 4))


def test_a_quantised_convolution_has_its_shape(tmp_path):
    blocks, values = random_blocks("q8_0", 6, 64)
    path = write(tmp_path / "a.gguf", {}, {"w": (blocks, "q8_0")}, **{"comfy.gguf.orig_shape.w": [6, 16, 2, 2]})
    source = open_source(path)
    assert source.shape("w") == (6, 16, 2, 2)
    np.testing.assert_allclose(source.as_f32("w"), values.reshape(6, 16, 2, 2), rtol=1e-6)
    layer = PatchProjection(SimpleNamespace(dim=6, in_channels=16, patch_size=2))
    path = write(
        tmp_path / "b.gguf", {"bias": np.zeros(6, np.float32)}, {"weight": (blocks, "q8_0")},
        **{"comfy.gguf.orig_shape.weight": [6, 16, 2, 2]},
    )  # fmt: skip
    _store = load(layer, open_source(path), AUTO)
    x = np.random.default_rng(1).standard_normal((1, 5, 64), dtype=np.float32)
    y = run_graph(lambda b, t: layer(b, t), x)
    np.testing.assert_allclose(y[0], x[0] @ values.T, rtol=1e-4, atol=1e-4)


def test_a_directory_may_hold_one_gguf_file(tmp_path):
    path = write(tmp_path / "a.gguf", {"a": np.ones(3, np.float32)})
    assert open_source(tmp_path).path == path
    write(tmp_path / "b.gguf", {"b": np.ones(3, np.float32)})
    with pytest.raises(CheckpointError, match="several GGUF files: a.gguf, b.gguf"):
        open_source(tmp_path)


def test_several_sources_are_one(tmp_path):
    first = open_source(write(tmp_path / "a.gguf", {"a": np.ones(3, np.float32)}))
    second = open_source(write(tmp_path / "b.gguf", {"b": np.zeros((2, 2), np.float16)}))
    both = Together([first, second])
    assert (both.keys(), both.file("b"), both.nbytes) == (["a", "b"], second.path, 20)
    np.testing.assert_array_equal(both.as_f32("b"), np.zeros((2, 2), np.float32))
    with pytest.raises(CheckpointError, match=r"'a' is in both .*a\.gguf and .*a\.gguf"):
        Together([first, first])
