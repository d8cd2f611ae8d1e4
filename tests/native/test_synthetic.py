"""Random checkpoints of true size: what is in them, and what writing them takes."""

from __future__ import annotations

import math
import shutil
import tracemalloc
from collections import namedtuple

import gguf
import numpy as np
import pytest
import random_values
import synthetic
from random_values import SCALES, TYPES, pieces
from safetensors import safe_open

from edgedit.graph import _ggml
from edgedit.models.flux import FluxConfig, FluxNetwork

# As their publishers state them, in billions.
PUBLISHED = {"flux-schnell": 11.9, "flux-dev": 11.9, "sd3.5-medium": 2.5, "sd3.5-large": 8.1, "t5-xxl": 4.76}
TINY = FluxConfig(num_layers=2, num_single_layers=2, num_attention_heads=2, joint_attention_dim=256)


def tiny(dtype):
    return synthetic.tensors_of("flux", "original", FluxNetwork(TINY), dtype)


@pytest.mark.parametrize("model", PUBLISHED)
def test_models_have_their_published_size(model):
    tensors = synthetic.tensors_of(*synthetic.network_of(model), "q4_k")
    count = sum(math.prod(tensor.shape) for tensor in tensors)
    assert count / 1e9 == pytest.approx(PUBLISHED[model], rel=0.02)
    assert len({tensor.name for tensor in tensors}) == len(tensors)


def test_matrices_are_of_the_type_that_was_asked_for_and_the_rest_is_small():
    tensors = synthetic.tensors_of(*synthetic.network_of("flux-schnell"), "q4_k")
    assert {tensor.dtype for tensor in tensors} == {"q4_k", "q8_0", "f32"}
    rest = sum(math.prod(tensor.shape) for tensor in tensors if tensor.dtype != "q4_k")
    assert rest < 1e-3 * sum(math.prod(tensor.shape) for tensor in tensors)


def test_matrices_whose_rows_fill_only_short_blocks_are_q8_0():
    """Stable Diffusion 3.5 Large is 2432 channels wide, nine and a half times 256."""
    tensors = synthetic.tensors_of(*synthetic.network_of("sd3.5-large"), "q4_k")
    types = {tensor.dtype for tensor in tensors if tensor.shape[1:] == (2432,)}
    assert types == {"q8_0"}


@pytest.mark.parametrize("dtype", TYPES)
def test_values_are_as_spread_as_was_asked_and_not_zeros(dtype):
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    drawn = np.concatenate([piece.reshape(-1).view(np.uint8) for piece in pieces("key", 1 << 18, dtype, 0.0, 0.02)])
    rows = drawn.reshape(1024, -1)
    plain = {"f32": np.float32, "f16": np.float16}.get(dtype)
    values = rows.view(plain) if plain else gguf.quants.dequantize(rows, kind)
    assert values.size == 1 << 18
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(0.02, rel=0.06)
    assert abs(values.mean()) < 0.0005
    assert abs(values.reshape(-1, 32).mean(axis=1)).mean() < 0.2 * 0.02  # a random mean of 32 is 0.18 of the spread
    assert (values == 0).mean() < 0.2
    assert len(np.unique(drawn)) > 200


def test_a_mean_is_that_of_plain_types():
    values = np.concatenate(list(pieces("key", 10_000, "f32", 1.0, 0.1)))
    assert values.mean() == pytest.approx(1, abs=0.01)


def test_keys_decide_the_values():
    first, again, other = (next(pieces(key, 4096, "q4_k", 0, 1)) for key in ("a", "a", "b"))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("dtype", ["q4_k", "q8_0", "bf16"])
def test_a_gguf_file_is_what_was_planned(tmp_path, dtype):
    tensors = tiny(dtype)
    path = tmp_path / "tiny.gguf"
    assert synthetic.write(path, "flux", tensors) == path.stat().st_size
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.architecture"].contents() == "flux"
    read = {tensor.name: tensor for tensor in reader.tensors}
    assert set(read) == {tensor.name for tensor in tensors}
    for tensor in tensors:
        assert tuple(int(n) for n in read[tensor.name].shape) == tensor.shape[::-1]
        assert read[tensor.name].tensor_type.name == tensor.dtype.upper()
    values = read["double_blocks.1.img_mlp.0.weight"]
    expected = b"".join(piece.tobytes() for piece in next(t for t in tensors if t.name == values.name).pieces())
    assert values.data.tobytes() == expected
    assert {"double_blocks.0.img_attn.qkv.weight", "final_layer.linear.weight"} <= set(read)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_safetensors_file_is_what_was_planned(tmp_path, dtype):
    tensors = tiny(dtype)
    path = tmp_path / "tiny.safetensors"
    assert synthetic.write(path, "flux", tensors) == path.stat().st_size
    with safe_open(path, "numpy") as file:
        assert set(file.keys()) == {tensor.name for tensor in tensors}
        for tensor in tensors:
            part = file.get_slice(tensor.name)
            assert (tuple(part.get_shape()), part.get_dtype()) == (tensor.shape, tensor.dtype.upper())


def test_writing_holds_a_piece_of_a_tensor(tmp_path, monkeypatch):
    monkeypatch.setattr(random_values, "PIECE", 1 << 12)
    tensors = tiny("q8_0")
    next(tensors[0].pieces())  # the spread of the type is measured once
    tracemalloc.start()
    synthetic.write(tmp_path / "tiny.gguf", "flux", tensors)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < max(tensor.planned.nbytes for tensor in tensors) / 2


def test_quantised_types_do_not_go_into_safetensors(tmp_path):
    with pytest.raises(ValueError, match="write other types as .gguf"):
        synthetic.write(tmp_path / "tiny.safetensors", "flux", tiny("q4_k"))
    assert not list(tmp_path.iterdir())


def test_a_disk_without_room_is_refused_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(1000))
    with pytest.raises(ValueError, match="1000 are free"):
        synthetic.write(tmp_path / "tiny.gguf", "flux", tiny("q4_k"))
    assert not list(tmp_path.iterdir())


def test_a_failure_in_the_middle_leaves_no_file(tmp_path, monkeypatch):
    tensors = tiny("f16")

    def broken(key, *arguments):
        assert key != tensors[9].name, "broken"
        return pieces(key, *arguments)

    monkeypatch.setattr(synthetic, "pieces", broken)
    with pytest.raises(AssertionError, match="broken"):
        synthetic.write(tmp_path / "tiny.gguf", "flux", tensors)
    assert not list(tmp_path.iterdir())


def test_every_scale_is_where_ggml_has_it():
    """Blocks of zeros but for the scales: those of one factor alone are 0, NaN in a factor spreads to all values."""
    for dtype, scales in SCALES.items():
        block = np.zeros((1, _ggml.row_nbytes(dtype, _ggml.block_size(dtype))), np.uint8)
        block[0] = 1
        for at in (scales.factor, scales.offset):
            if at is not None:
                spoilt = block.copy()
                spoilt[0, at : at + 2] = [0xFF, 0x7F]
                assert np.isnan(gguf.quants.dequantize(spoilt, gguf.GGMLQuantizationType[dtype.upper()])).all()
