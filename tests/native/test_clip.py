"""CLIP text encoder against a float64 reference, and the ways it is published."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_layers import F16_TOLERANCE
from reference import clip_layers, clip_text
from tiny import random_tensors, write_clip, write_component
from tiny_sd3 import write_clip_with_projection
from tiny_shapes import CLIP_EOS, clip_config, clip_shapes, linear

from edgedit.errors import CheckpointError
from edgedit.models.clip import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, pooled_positions


def ids_of(batch, length, seed=0):
    return np.random.default_rng(seed).integers(3, 2000, (batch, length))


def error(actual, expected):
    return np.abs(actual - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("act", ["quick_gelu", "gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("batch", [1, 3])
def test_hidden_states_equal_the_reference(tmp_path, act, batch):
    config = write_clip(tmp_path, hidden_act=act)
    ids = ids_of(batch, 13)
    hidden, _ = CLIPTextModel.from_pretrained(tmp_path)(ids)
    assert error(hidden, clip_text(random_tensors(clip_shapes(config), 0), config, ids)) < 1e-5


@pytest.mark.parametrize("layers", [1, 3])
def test_states_before_the_last_layer_and_projections_equal_the_reference(tmp_path, layers):
    config = write_clip_with_projection(tmp_path, num_hidden_layers=layers, projection_dim=24)
    projection = linear("text_projection", 24, config["hidden_size"], bias=False)
    tensors = random_tensors(clip_shapes(config) | projection, 0)
    ids = ids_of(3, 13)
    ends = [4, 12, 7]
    ids[np.arange(3), ends] = CLIP_EOS
    states, projected = CLIPTextModelWithProjection.from_pretrained(tmp_path)(ids)
    assert error(states, clip_layers(tensors, config, ids, layers - 1)) < 1e-5
    pooled = clip_text(tensors, config, ids)[np.arange(3), ends]
    assert error(projected, pooled @ tensors["text_projection.weight"].T.astype(np.float64)) < 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [("f16", F16_TOLERANCE), ("bf16", 3e-2), ("q8_0", 3e-2)])
def test_narrow_compute_types_stay_close(tmp_path, dtype, tolerance):
    config = write_clip(tmp_path, hidden_size=64)
    ids = ids_of(2, 16)
    hidden, _ = CLIPTextModel.from_pretrained(tmp_path, compute_dtype=dtype)(ids)
    assert 0 < error(hidden, clip_text(random_tensors(clip_shapes(config), 0), config, ids)) < tolerance


@pytest.mark.parametrize("prefix", ["text_model.", ""])
def test_keys_load_with_and_without_prefix_and_with_position_ids(tmp_path, prefix):
    config = clip_config()
    tensors = random_tensors(clip_shapes(config, prefix), 0)
    tensors[f"{prefix}embeddings.position_ids"] = np.arange(16, dtype=np.float32)[None]
    write_component(tmp_path, config, tensors, "model")
    ids = ids_of(2, 16)
    hidden, _ = CLIPTextModel.from_pretrained(tmp_path)(ids)
    assert error(hidden, clip_text(tensors, config, ids, prefix)) < 1e-5


def test_tensors_of_another_kind_of_clip_are_listed(tmp_path):
    config = clip_config()
    tensors = random_tensors(clip_shapes(config) | {"text_projection.weight": (32, 32)}, 0)
    write_component(tmp_path, config, tensors, "model")
    with pytest.raises(CheckpointError, match=r"1 unknown: text_projection\.weight"):
        CLIPTextModel.from_pretrained(tmp_path)


def test_a_token_does_not_see_those_after_it(tmp_path):
    write_clip(tmp_path)
    model = CLIPTextModel.from_pretrained(tmp_path)
    ids = ids_of(1, 10)
    changed = ids.copy()
    changed[0, 6] += 1
    before, after = model(ids)[0][0], model(changed)[0][0]
    np.testing.assert_array_equal(before[:6], after[:6])
    assert (np.abs(before[6:] - after[6:]).max(axis=1) > 1e-4).all()


def test_pooled_vector_is_the_state_at_the_first_eos(tmp_path):
    write_clip(tmp_path)
    ids = ids_of(3, 8)
    ids[0, 3:] = CLIP_EOS
    ids[1, 7] = CLIP_EOS
    hidden, pooled = CLIPTextModel.from_pretrained(tmp_path)(ids)
    np.testing.assert_array_equal(pooled, hidden[[0, 1, 2], [3, 7, 0]])


def test_legacy_configs_pool_at_the_highest_id():
    ids = np.array([[5, 99, 7, 99], [2, 3, 1, 0]])
    assert pooled_positions(ids, eos_token_id=2).tolist() == [1, 1]
    assert pooled_positions(ids, eos_token_id=99).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros((1, 17), int), "17 tokens exceed max_position_embeddings=16"),
        (np.array([[1, 2107]]), "reach from 1 to 2107; the vocabulary has 2107"),
        (np.array([[-1, 1]]), "reach from -1"),
        (np.zeros((1, 4)), r"must be integers \[B, S\], got float64"),
        (np.zeros(4, int), r"must be integers \[B, S\]"),
        (np.zeros((0, 4), int), r"must be integers \[B, S\]"),
    ],
)
def test_ids_that_would_end_the_process_are_refused(tmp_path, ids, message):
    write_clip(tmp_path)
    with pytest.raises(ValueError, match=message):
        CLIPTextModel.from_pretrained(tmp_path)(ids)


def test_configs_that_are_not_supported_are_refused_by_name():
    with pytest.raises(ValueError, match=r"hidden_act='mish' is not supported; supported: gelu, "):
        CLIPTextConfig.from_dict({"hidden_act": "mish"})
    with pytest.raises(ValueError, match=r"hidden_size=33 is not a multiple of num_attention_heads=4"):
        CLIPTextConfig.from_dict({"hidden_size": 33, "num_attention_heads": 4})
    with pytest.raises(ValueError, match=r"eos_token_id is \[1, 2\]; it must be an integer"):
        CLIPTextConfig.from_dict({"eos_token_id": [1, 2]})


def test_the_text_part_of_a_whole_clip_config_is_read():
    config = CLIPTextConfig.from_dict({"model_type": "clip", "text_config": {"hidden_size": 64}})
    assert config.hidden_size == 64
