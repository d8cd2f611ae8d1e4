"""8-bit checkpoints: their scales are applied, or they are refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from single_files import TOLD_FLUX, original, read_component, write_typed
from tiny import write_flux_pipeline

from edgedit.errors import CheckpointError
from edgedit.models.flux import FluxTransformer
from edgedit.weights.fp8 import FP8_VALUES
from edgedit.weights.recognise import component_of
from edgedit.weights.scales import with_scales
from edgedit.weights.sources import open_source

F32 = np.float32


def decoded(code: int, exponent_bits: int, mantissa_bits: int, is_ieee: bool) -> float:
    """A code of sign, exponent and mantissa, by the definition of the type."""
    sign = -1.0 if code >> 7 else 1.0
    exponent = (code >> mantissa_bits) % (1 << exponent_bits)
    mantissa = code % (1 << mantissa_bits)
    bias = 2 ** (exponent_bits - 1) - 1
    if is_ieee and exponent == 2**exponent_bits - 1:
        return math.nan if mantissa else sign * math.inf
    if not is_ieee and code & 0x7F == 0x7F:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)


@pytest.mark.parametrize(("dtype", "layout"), [("F8_E4M3", (4, 3, False)), ("F8_E5M2", (5, 2, True))])
def test_every_code_has_its_value(dtype, layout):
    expected = np.array([decoded(code, *layout) for code in range(256)], F32)
    np.testing.assert_array_equal(FP8_VALUES[dtype], expected)


def encoded(values, dtype):
    """The codes nearest to values."""
    table = np.where(np.isfinite(FP8_VALUES[dtype]), FP8_VALUES[dtype], np.inf)
    order = np.argsort(table)
    order = order[np.isfinite(table[order])]
    middles = (table[order][1:] + table[order][:-1]) / 2
    return order[np.searchsorted(middles, values)].astype(np.uint8)


def flux_tensors(folder):
    directory = write_flux_pipeline(folder / "flux", seed=8, **TOLD_FLUX)
    return original("flux", read_component(directory / "transformer"))


def as_fp8(tensors, dtype, spelling, per_row=False):
    """A file in a spelling, and the values that it stands for."""
    typed, meant = {}, {}
    for key, values in tensors.items():
        if values.ndim != 2:
            typed[key], meant[key] = (values, "F32"), values
            continue
        module = key.removesuffix(".weight")
        largest = np.abs(values).max(axis=1 if per_row else None, keepdims=True).astype(F32)
        scale = largest / F32(400 if dtype == "F8_E4M3" else 40000)
        if spelling == "none":
            scale = np.ones((1, 1), F32)
        codes = encoded(values / scale, dtype)
        typed[key], meant[key] = (codes, dtype), FP8_VALUES[dtype][codes] * scale
        stored = scale if per_row else scale.reshape(())
        if spelling != "none":
            typed[f"{module}.{spelling}"] = (stored, "F32")
            typed[f"{module}.{'scale_input' if spelling == 'scale_weight' else 'input_scale'}"] = (
                np.array(3.0, F32),
                "F32",
            )
    if spelling == "scale_weight":
        typed["scaled_fp8"] = (np.zeros(0, np.uint8), dtype)
    return typed, meant


CALL = {
    "hidden_states": np.linspace(-1, 1, 6 * 16, dtype=F32).reshape(1, 6, 16),
    "encoder_hidden_states": np.linspace(1, -1, 4 * 32, dtype=F32).reshape(1, 4, 32),
    "pooled_projections": np.linspace(-1, 2, 64, dtype=F32)[None],
    "timestep": np.array([0.5], F32),
    "img_ids": np.stack([np.zeros(6), *np.divmod(np.arange(6), 3)], 1),
    "txt_ids": np.zeros((4, 3)),
}


@pytest.mark.parametrize(
    ("dtype", "spelling", "per_row"),
    [
        ("F8_E4M3", "none", False),
        ("F8_E4M3", "scale_weight", False),
        ("F8_E5M2", "weight_scale", False),
        ("F8_E4M3", "weight_scale", True),
    ],
)
def test_weights_are_codes_times_scales(tmp_path, dtype, spelling, per_row):
    typed, meant = as_fp8(flux_tensors(tmp_path), dtype, spelling, per_row)
    file = write_typed(tmp_path / "fp8.safetensors", typed)
    source = with_scales(open_source(file))
    assert set(source) == set(meant)
    for key, values in meant.items():
        np.testing.assert_array_equal(source.as_f32(key), values, err_msg=key)
    plain = write_typed(tmp_path / "f32.safetensors", {key: (values, "F32") for key, values in meant.items()})
    for compute_dtype in ("f32", "bf16", "q8_0"):
        drawn, expected = (FluxTransformer.from_pretrained(f, compute_dtype)(**CALL) for f in (file, plain))
        assert np.isfinite(expected).all() and np.ptp(expected) > 0
        np.testing.assert_array_equal(drawn, expected)


def test_formats_of_each_weight_are_heeded(tmp_path):
    codes = np.arange(128, dtype=np.uint8).reshape(1, 128)
    note = np.frombuffer(json.dumps({"format": "float8_e4m3fn"}).encode(), np.uint8)
    tensors = {"a.weight": (codes, "F8_E4M3"), "a.weight_scale": (np.array([2.0], F32), "F32"),
               "a.comfy_quant": (note, "U8")}  # fmt: skip
    source = with_scales(open_source(write_typed(tmp_path / "noted.safetensors", tensors)))
    assert source.keys() == ["a.weight"]
    np.testing.assert_array_equal(source.as_f32("a.weight")[0, :127], 2 * FP8_VALUES["F8_E4M3"][:127])


WEIGHT = (np.zeros((4, 6), np.uint8), "F8_E4M3")
ONE = (np.ones(1, F32), "F32")
REFUSED = {
    "a scale without its weight": ({"b.scale_weight": ONE}, r"'b\.scale_weight' belongs to 'b\.weight', which is not"),
    "two scales": ({"a.scale_weight": ONE, "a.weight_scale": ONE}, r"'a\.weight' has two scales"),
    "a scale for each column": ({"a.weight_scale": (np.ones((1, 6), F32), "F32")}, r"shape \[1, 6\].*\[4, 6\]"),
    "a scale that is no number": ({"a.weight_scale": (np.full(1, np.nan, F32), "F32")}, "not finite"),
    "a scale of zero": ({"a.weight_scale": (np.zeros(1, F32), "F32")}, "zeros"),
    "a scale in integers": ({"a.weight_scale": (np.ones(1, np.int64), "I64")}, "type I64"),
    "a marker without scales": ({"scaled_fp8": (np.zeros(0, np.uint8), "F8_E4M3")}, r"have no scale: a\.weight"),
    "scales of blocks": ({"a.weight_scale_inv": ONE}, "a scale for each block"),
    "integers of bitsandbytes": ({"a.SCB": ONE}, "bitsandbytes"),
    "blocks of bitsandbytes": ({"a.weight.absmax": ONE}, "bitsandbytes"),
    "another format": (
        {"a.comfy_quant": (np.frombuffer(b'{"format": "nvfp4"}', np.uint8), "U8"), "a.weight_scale": ONE},
        r"says 'nvfp4'; supported: float8_e4m3fn",
    ),
    "a format that is no JSON": ({"a.comfy_quant": (np.zeros(3, np.uint8), "U8")}, "does not say"),
    "a format without a scale": (
        {"a.comfy_quant": (np.frombuffer(b'{"format": "float8_e5m2"}', np.uint8), "U8")},
        r"have no scale: a\.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_schemes_are_refused_by_name(tmp_path, case):
    added, match = REFUSED[case]
    file = write_typed(tmp_path / "odd.safetensors", {"a.weight": WEIGHT} | added)
    with pytest.raises(CheckpointError, match=match):
        with_scales(open_source(file))


def test_a_model_of_a_scheme_that_is_refused_is_not_loaded(tmp_path):
    typed, _ = as_fp8(flux_tensors(tmp_path), "F8_E4M3", "scale_weight")
    del typed["double_blocks.0.img_attn.qkv.scale_weight"]
    file = write_typed(tmp_path / "fp8.safetensors", typed)
    with pytest.raises(CheckpointError, match=r"have no scale: double_blocks\.0\.img_attn\.qkv\.weight"):
        FluxTransformer.from_pretrained(file)
    typed["double_blocks.0.img_attn.qkv.weight_zero_point"] = ONE
    with pytest.raises(CheckpointError, match="zero points"):
        component_of(open_source(write_typed(file, typed)), "flux")
