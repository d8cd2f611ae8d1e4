"""Weights in the panels of a kernel family: what they take, told beforehand and loaded, and that pieces do not show."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from kernel_layers import TYPES, Values, linear_layer
from tiny import write_flux_transformer

from edgedit import _native
from edgedit.config import ParallelConfig
from edgedit.dtypes import f32_to_bf16
from edgedit.errors import CheckpointError
from edgedit.models.flux import FluxConfig, FluxNetwork, FluxTransformer
from edgedit.models.layers import Linear
from edgedit.parallel.context import ParallelContext
from edgedit.weights.loader import load
from edgedit.weights.outline import outline

FAMILIES = _native.kernels.families()
families = pytest.mark.parametrize("family", FAMILIES)
PACKED = ("f32", "f16", "bf16")


def stored_bytes(parameter):
    tensor = parameter.tensor
    return ctypes.string_at(tensor.pointer.contents.data, tensor.nbytes)


def weight_of(columns, inner):
    return np.random.default_rng(columns).standard_normal((columns, inner), dtype=np.float32)


@families
@pytest.mark.parametrize("dtype", TYPES)
def test_only_plain_types_are_packed_and_stand_aligned(family, dtype):
    layer, store = linear_layer(weight_of(100, 256), weight_of(1, 100)[0], dtype, family)
    tensor = layer.weight.tensor
    assert (tensor.dtype, tensor.shape) == (dtype, (100, 256))
    assert tensor.packed == (family if dtype in PACKED else None)
    assert layer.bias.tensor.packed is None
    assert tensor.pointer.contents.data % 64 == 0
    assert tensor.nbytes <= store.nbytes <= tensor.nbytes + layer.bias.tensor.nbytes + 2 * 64


@families
@pytest.mark.parametrize("dtype", PACKED)
def test_a_packed_weight_takes_hardly_more_than_its_values(family, dtype):
    layer, _store = linear_layer(weight_of(300, 517), None, dtype, family)
    panel = _native.kernels.panel(family)
    whole = -(-300 // panel) * panel * (517 + 1) * (4 if dtype == "f32" else 2)
    assert 300 * 517 * (4 if dtype == "f32" else 2) < layer.weight.tensor.nbytes <= whole + 64


@families
@pytest.mark.parametrize("dtype", PACKED)
def test_pieces_and_threads_do_not_show(family, dtype, monkeypatch):
    weight = weight_of(333, 129)
    whole, _store = linear_layer(weight, None, dtype, family)
    for elements, cores in ((1, 1), (129 * 200, 3)):
        monkeypatch.setattr("edgedit.weights.convert.PIECE_ELEMENTS", elements)
        monkeypatch.setattr("edgedit.weights.loader.usable_cores", lambda cores=cores: cores)
        pieces, _other = linear_layer(weight, None, dtype, family)
        assert stored_bytes(pieces.weight) == stored_bytes(whole.weight)


@families
def test_stored_types_make_no_difference_where_they_hold_the_same_values(family):
    weight = weight_of(90, 64)
    bits = f32_to_bf16(weight)
    kept = []
    for values, stored in ((bits, "BF16"), ((bits.astype(np.uint32) << 16).view(np.float32), "F32")):
        checkpoint = Values(weight=values)
        checkpoint.dtype = lambda key, stored=stored: stored
        layer = Linear(64, 90, bias=False)
        store = load(layer, checkpoint, "bf16", kernels=family)
        kept.append(stored_bytes(layer.weight))
        store.close()
    assert kept[0] == kept[1]


@families
def test_values_beyond_f16_are_refused(family):
    weight = weight_of(40, 32)
    weight[33, 3] = 1e5
    with pytest.raises(CheckpointError, match=r"'weight' reaches 1e\+05, beyond the 65504 of f16"):
        linear_layer(weight, None, "f16", family)


@families
@pytest.mark.parametrize("dtype", TYPES)
def test_the_outline_tells_what_loading_takes(family, dtype):
    config = FluxConfig(num_layers=1, num_single_layers=1, num_attention_heads=2, pooled_projection_dim=96)
    network, told = FluxNetwork(config), FluxNetwork(config)
    with outline(told, dtype, family) as nbytes:
        total = sum(nbytes.values())
    zeros = {name: np.zeros(parameter.shape, np.float32) for name, parameter in network.named_parameters()}
    store = load(network, Values(**zeros), dtype, kernels=family)
    assert sum(parameter.tensor.nbytes for _, parameter in network.named_parameters()) == total
    assert total <= store.nbytes < 1.001 * total


@families
def test_a_model_packs_for_the_family_of_its_context(family, tmp_path):
    write_flux_transformer(tmp_path)
    for kernels, packed in ((family, family), ("ggml", None)):
        context = ParallelContext(ParallelConfig(kernels=kernels))
        model = FluxTransformer.from_pretrained(tmp_path, "bf16", 1, context)
        weights = [p.tensor for _, p in model.network.named_parameters() if p.role == "linear"]
        assert {tensor.packed for tensor in weights} == {packed}
        model.close()
