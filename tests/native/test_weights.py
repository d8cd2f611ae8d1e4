"""Loading a checkpoint into a module: types in memory, tied and renamed keys, and what is refused before reading."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest
from tiny import write_safetensors

from edgedit.dtypes import bf16_to_f32, f32_to_bf16
from edgedit.errors import CheckpointError, GgmlError
from edgedit.graph._ggml import TYPE_IDS, lib
from edgedit.models.layers import Conv2d, Embedding, LayerNorm, Linear
from edgedit.models.module import Module
from edgedit.weights import Checkpoint, load, loader


class Toy(Module):
    def __init__(self):
        self.table = Embedding(6, 256)
        self.conv = Conv2d(3, 4, 3)
        self.norm = LayerNorm(256, 1e-5)
        self.wide = Linear(256, 8)
        self.odd = Linear(33, 4)


def toy_tensors():
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(parameter.shape, dtype=np.float32)
        for name, parameter in Toy().named_parameters()
    }


def stored_bytes(parameter):
    address = parameter.tensor.pointer.contents.data
    return np.frombuffer((ctypes.c_char * parameter.tensor.nbytes).from_address(address), np.uint8).copy()


def as_f32(parameter):
    """Values of a loaded parameter, widened by ggml itself."""
    data = np.ascontiguousarray(stored_bytes(parameter))
    if parameter.tensor.dtype == "f32":
        return data.view(np.float32).reshape(parameter.shape)
    out = np.empty(parameter.shape, np.float32)
    to_float = lib.ggml_get_type_traits(TYPE_IDS[parameter.tensor.dtype]).contents.to_float
    to_float = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        ctypes.cast(to_float, ctypes.c_void_p).value
    )
    to_float(data.ctypes.data, out.ctypes.data, out.size)
    return out


def load_toy(tmp_path, compute_dtype="f32", tensors=None, stored="F32", **options):
    write_safetensors(tmp_path / "model.safetensors", tensors or toy_tensors(), stored)
    module = Toy()
    store = load(module, Checkpoint.open(tmp_path), compute_dtype, **options)
    return store, dict(module.named_parameters())


@pytest.mark.parametrize("stored", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("compute", ["f32", "f16", "bf16"])
def test_values_are_those_of_the_file_rounded_to_the_compute_type(tmp_path, stored, compute):
    tensors = toy_tensors()
    _store, parameters = load_toy(tmp_path, compute, tensors, stored)
    rounding = {
        "f32": lambda x: x,
        "f16": lambda x: x.astype(np.float16).astype(np.float32),
        "bf16": lambda x: bf16_to_f32(f32_to_bf16(x)),
    }
    for name, parameter in parameters.items():
        expected = rounding[stored.lower()](tensors[name])
        if name in ("wide.weight", "odd.weight"):
            assert parameter.tensor.dtype == compute
            expected = rounding[compute](expected)
        else:
            assert parameter.tensor.dtype == "f32"
        np.testing.assert_array_equal(as_f32(parameter), expected, err_msg=name)


@pytest.mark.parametrize(
    ("compute", "step"),
    [("q8_0", 1 / 127), ("q4_0", 1 / 8), ("q4_k", 1 / 8), ("q5_k", 1 / 16), ("q6_k", 1 / 24)],
)
def test_quantised_weights_stay_within_a_step_and_odd_rows_become_f16(tmp_path, compute, step):
    tensors = toy_tensors()
    _store, parameters = load_toy(tmp_path, compute, tensors)
    assert parameters["wide.weight"].tensor.dtype == compute
    assert parameters["odd.weight"].tensor.dtype == "f16"
    error = np.abs(as_f32(parameters["wide.weight"]) - tensors["wide.weight"])
    assert 0 < error.max() < step * np.abs(tensors["wide.weight"]).max()


def test_tensors_larger_than_a_piece_are_converted_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("edgedit.weights.convert.PIECE_ELEMENTS", 600)
    tensors = toy_tensors()
    _store, parameters = load_toy(tmp_path, "bf16", tensors)
    for name in ("wide.weight", "table.weight", "conv.weight"):
        expected = tensors[name] if name != "wide.weight" else bf16_to_f32(f32_to_bf16(tensors[name]))
        np.testing.assert_array_equal(as_f32(parameters[name]), expected)


def test_progress_ends_at_the_total(tmp_path):
    reports = []
    store, _ = load_toy(tmp_path, progress=lambda done, total: reports.append((done, total)))
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert reports[-1][0] == reports[-1][1] <= store.nbytes


def test_missing_unknown_and_misshapen_tensors_are_all_listed(tmp_path):
    tensors = toy_tensors()
    del tensors["norm.bias"]
    tensors["odd.weight"] = tensors["odd.weight"].T.copy()
    tensors |= {f"extra.{i}": np.zeros(1, np.float32) for i in range(12)}
    with pytest.raises(CheckpointError) as error:
        load_toy(tmp_path, tensors=tensors)
    message = str(error.value)
    assert str(tmp_path) in message
    assert "1 missing: norm.bias" in message
    assert "12 unknown: extra.0, extra.1" in message
    assert "and 2 more" in message
    assert "extra.11" not in message
    assert "odd.weight is [33, 4] for [4, 33]" in message


def test_nothing_is_allocated_for_a_checkpoint_that_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "declare", lambda *_: pytest.fail("allocated"))
    tensors = toy_tensors()
    del tensors["norm.bias"]
    with pytest.raises(CheckpointError):
        load_toy(tmp_path, tensors=tensors)


def test_a_lack_of_memory_is_said_with_what_was_wanted(tmp_path, monkeypatch):
    def refuse(*_):
        raise MemoryError

    monkeypatch.setattr("edgedit.weights.memory.np", SimpleNamespace(empty=refuse, uint8=np.uint8))
    with pytest.raises(GgmlError, match=rf"{tmp_path}.*not enough memory for \d+ bytes of weights, as bf16"):
        load_toy(tmp_path, "bf16")


def test_renamed_ignored_and_dropped_keys(tmp_path):
    tensors = {f"model.{name}": values for name, values in toy_tensors().items()}
    tensors |= {"counter": np.zeros(1, np.float32), "ema.decay": np.zeros(1, np.float32)}

    def rename(key):
        return None if key == "counter" else key.removeprefix("model.")

    _store, parameters = load_toy(tmp_path, tensors=tensors, rename=rename, ignore=["ema.*"])
    np.testing.assert_array_equal(as_f32(parameters["conv.weight"]), tensors["model.conv.weight"])


def test_two_keys_for_one_parameter_must_agree(tmp_path):
    tensors = toy_tensors()
    tensors["tied.weight"] = tensors["table.weight"].copy()
    rename = {"tied.weight": "table.weight"}
    load_toy(tmp_path, tensors=tensors, rename=lambda key: rename.get(key, key))
    tensors["tied.weight"][0, 0] += 1
    with pytest.raises(
        CheckpointError, match=r"table\.weight and tied\.weight both stand for table\.weight and differ"
    ):
        load_toy(tmp_path, tensors=tensors, rename=lambda key: rename.get(key, key))


def test_values_beyond_f16_are_refused_rather_than_made_infinite(tmp_path):
    tensors = toy_tensors()
    tensors["wide.weight"][0, 0] = 1e5
    load_toy(tmp_path, "bf16", tensors)
    with pytest.raises(CheckpointError, match=r"'wide\.weight' reaches 1e\+05, beyond the 65504 of f16"):
        load_toy(tmp_path, "f16", tensors)


def test_values_that_are_not_finite_are_not_quantised(tmp_path):
    tensors = toy_tensors()
    tensors["wide.weight"][0, 0] = np.nan
    with pytest.raises(CheckpointError, match="not finite"):
        load_toy(tmp_path, "q8_0", tensors)


def test_an_unknown_compute_type_is_refused_with_the_legal_ones(tmp_path):
    with pytest.raises(ValueError, match=r"'fp8'; legal: auto, f32, f16, bf16, q8_0"):
        load_toy(tmp_path, "fp8")
