"""What `Checkpoint.open` finds in a directory, and what it refuses."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from safetensors.numpy import save_file

from edgedit.errors import CheckpointError
from edgedit.weights.checkpoint import Checkpoint

ONE = {"a": np.arange(3, dtype=np.float32)}
TWO = {"b": np.arange(4, dtype=np.float16), "c": np.arange(2, dtype=np.float32)}


def write_shards(directory, weight_map=None, name="model"):
    save_file(ONE, directory / f"{name}-00001-of-00002.safetensors")
    save_file(TWO, directory / f"{name}-00002-of-00002.safetensors")
    if weight_map is None:
        weight_map = dict.fromkeys(ONE, f"{name}-00001-of-00002.safetensors")
        weight_map |= dict.fromkeys(TWO, f"{name}-00002-of-00002.safetensors")
    index = directory / f"{name}.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 28}, "weight_map": weight_map}))
    return index


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.fp16.safetensors",
     "flux1-dev.safetensors"],
)  # fmt: skip
def test_a_single_file_is_found_by_its_published_names(tmp_path, name):
    save_file(ONE, tmp_path / name)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.keys() == ["a"]
    assert (checkpoint.shape("a"), checkpoint.dtype("a"), checkpoint.nbytes) == ((3,), "F32", 12)
    assert Checkpoint.open(tmp_path / name).keys() == ["a"]


@pytest.mark.parametrize("name", ["model", "diffusion_pytorch_model"])
def test_shards_read_as_one_checkpoint(tmp_path, name):
    write_shards(tmp_path, name=name)
    checkpoint = Checkpoint.open(tmp_path)
    assert sorted(checkpoint.keys()) == ["a", "b", "c"]
    assert checkpoint.file("b").name == f"{name}-00002-of-00002.safetensors"
    for key, expected in (ONE | TWO).items():
        np.testing.assert_array_equal(checkpoint.as_f32(key), expected)


def test_bf16_and_f64_widen_or_narrow_to_f32(tmp_path):
    header = {
        "bf16": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "f64": {"dtype": "F64", "shape": [1], "data_offsets": [4, 12]},
    }
    text = json.dumps(header).encode()
    data = np.array([0x3FC0, 0xC000], "<u2").tobytes() + np.array([0.1]).tobytes()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    checkpoint = Checkpoint.open(tmp_path)
    np.testing.assert_array_equal(checkpoint.as_f32("bf16"), np.array([1.5, -2.0], np.float32))
    np.testing.assert_array_equal(checkpoint.as_f32("f64"), np.array([0.1], np.float32))


@pytest.mark.parametrize("dtype", ["F8_E8M0", "I64"])
def test_types_that_weights_cannot_have_are_refused_as_weights(tmp_path, dtype):
    nbytes = 8 if dtype == "I64" else 1
    text = json.dumps({"w": {"dtype": dtype, "shape": [1], "data_offsets": [0, nbytes]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(nbytes))
    with pytest.raises(CheckpointError, match=f"'w' has type {dtype}"):
        Checkpoint.open(tmp_path).as_f32("w")


def test_a_missing_shard_is_named(tmp_path):
    index = write_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"missing: model-00002-of-00002\.safetensors") as error:
        Checkpoint.open(tmp_path)
    assert str(index) in str(error.value)


def test_an_index_that_names_absent_tensors_is_refused(tmp_path):
    write_shards(tmp_path, {"a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002\.safetensors that are not there: b"):
        Checkpoint.open(tmp_path)


def test_one_tensor_in_two_shards_is_refused(tmp_path):
    write_shards(tmp_path)
    save_file(ONE | TWO, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(CheckpointError, match="'a' is in both model-00001"):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    "shard", ["../model.safetensors", "/etc/passwd", "model.bin", "sub/model.safetensors"]
)
def test_an_index_cannot_point_outside_its_directory_or_at_other_formats(tmp_path, shard):
    write_shards(tmp_path, {"a": shard})
    with pytest.raises(CheckpointError, match="not the name of a safetensors file beside the index"):
        Checkpoint.open(tmp_path)


MALFORMED = [
    "",
    "[]",
    "{}",
    '{"weight_map": {}}',
    '{"weight_map": {"a": 1}}',
    "{",
    '{"weight_map": {"a": "x", "a": "y"}}',
]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_index_is_refused_and_named(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        Checkpoint.open(tmp_path)


class Exploding:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.ckpt", "model.pt", "model.pth", "model.pkl"])
def test_pickles_are_refused_by_name_and_never_opened(tmp_path, name):
    (tmp_path / name).write_bytes(pickle.dumps(Exploding()))
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(CheckpointError, match=f"{name}: pickle files can run code"):
            Checkpoint.open(path)


def test_a_directory_without_weights_and_one_with_too_many_say_so(tmp_path):
    with pytest.raises(CheckpointError, match="holds no safetensors file"):
        Checkpoint.open(tmp_path)
    save_file(ONE, tmp_path / "one.safetensors")
    save_file(TWO, tmp_path / "two.safetensors")
    with pytest.raises(
        CheckpointError, match=r"several checkpoints and no index: one\.safetensors, two\.safetensors"
    ):
        Checkpoint.open(tmp_path)


def test_a_path_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.safetensors: no such file"):
        Checkpoint.open(tmp_path / "gone.safetensors")
