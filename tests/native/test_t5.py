"""T5 encoder against a float64 reference, and the ways it is published."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_layers import F16_TOLERANCE
from reference import t5_bucket, t5_encoder
from tiny import random_tensors, write_component, write_t5
from tiny_shapes import T5_VOCAB, t5_config, t5_shapes

from edgedit.config import ParallelConfig
from edgedit.errors import CheckpointError
from edgedit.models.t5 import T5Config, T5EncoderModel, relative_position_buckets
from edgedit.parallel.context import ParallelContext

SMALL_BUCKETS = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}


def ids_of(batch, length, seed=0):
    return np.random.default_rng(seed).integers(0, T5_VOCAB, (batch, length))


def error(actual, expected):
    return np.abs(actual - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("kind", ["gated-gelu", "relu", "gated-silu", "gelu"])
@pytest.mark.parametrize("changes", [{}, SMALL_BUCKETS | {"d_kv": 12, "num_heads": 5}], ids=["square", "odd"])
def test_hidden_states_equal_the_reference(tmp_path, kind, changes):
    config = write_t5(tmp_path, feed_forward_proj=kind, **changes)
    ids = ids_of(2, 40)
    expected = t5_encoder(random_tensors(t5_shapes(config), 0), config, ids)
    assert error(T5EncoderModel.from_pretrained(tmp_path)(ids), expected) < 1e-5


def test_masked_tokens_have_no_influence(tmp_path):
    config = write_t5(tmp_path)
    model = T5EncoderModel.from_pretrained(tmp_path)
    ids = ids_of(2, 12)
    mask = np.arange(12)[None] < np.array([[5], [12]])
    expected = t5_encoder(random_tensors(t5_shapes(config), 0), config, ids, mask)
    actual = model(ids, mask)
    assert error(actual[0, :5], expected[0, :5]) < 1e-5
    assert error(actual[1], expected[1]) < 1e-5
    changed = ids.copy()
    changed[0, 5:] = 7
    np.testing.assert_array_equal(model(changed, mask)[0, :5], actual[0, :5])


def test_a_row_without_any_token_to_attend_to_is_finite(tmp_path):
    write_t5(tmp_path)
    out = T5EncoderModel.from_pretrained(tmp_path)(ids_of(1, 4), np.zeros((1, 4), int))
    assert np.isfinite(out).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [("f16", F16_TOLERANCE), ("bf16", 3e-2), ("q8_0", 3e-2)])
def test_narrow_compute_types_stay_close(tmp_path, dtype, tolerance):
    config = write_t5(tmp_path, d_model=64, d_ff=96)
    ids = ids_of(2, 16)
    actual = T5EncoderModel.from_pretrained(tmp_path, compute_dtype=dtype)(ids)
    assert 0 < error(actual, t5_encoder(random_tensors(t5_shapes(config), 0), config, ids)) < tolerance


def test_hidden_values_beyond_f16_do_not_overflow_f16_weights(tmp_path):
    config = t5_config(feed_forward_proj="relu")
    tensors = random_tensors(t5_shapes(config), 0)
    for key in tensors:
        if key.endswith("wi.weight"):
            tensors[key] *= 3e4
    write_component(tmp_path, config, tensors, "model")
    ids = ids_of(1, 8)
    actual = T5EncoderModel.from_pretrained(tmp_path, compute_dtype="f16")(ids)
    assert error(actual, t5_encoder(tensors, config, ids)) < F16_TOLERANCE


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (64, 256), (12, 50)])
def test_every_distance_falls_into_the_bucket_of_the_paper(buckets, distance):
    table = relative_position_buckets(300, buckets, distance)
    assert table.dtype == np.int32
    for key in range(300):
        assert table[0, key] == t5_bucket(key, buckets, distance)
        assert table[key, 0] == t5_bucket(-key, buckets, distance)
    np.testing.assert_array_equal(table[5:, 5:], table[:-5, :-5])


SPELLINGS = {
    "shared": ["shared.weight"],
    "embed_tokens": ["encoder.embed_tokens.weight"],
    "both": ["shared.weight", "encoder.embed_tokens.weight"],
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_embedding_loads_under_either_name_or_both(tmp_path, spelling):
    config = t5_config()
    tensors = random_tensors(t5_shapes(config), 0)
    table = tensors.pop("shared.weight")
    write_component(tmp_path, config, tensors | dict.fromkeys(SPELLINGS[spelling], table), "model")
    ids = ids_of(1, 6)
    expected = t5_encoder(tensors | {"shared.weight": table}, config, ids)
    assert error(T5EncoderModel.from_pretrained(tmp_path)(ids), expected) < 1e-5


def test_two_embeddings_that_differ_are_refused(tmp_path):
    config = t5_config()
    tensors = random_tensors(t5_shapes(config), 0)
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"] + 1
    write_component(tmp_path, config, tensors, "model")
    with pytest.raises(CheckpointError, match=r"shared\.weight and encoder\.embed_tokens\.weight both"):
        T5EncoderModel.from_pretrained(tmp_path)


def test_two_embeddings_of_different_shape_are_refused(tmp_path):
    config = t5_config()
    tensors = random_tensors(t5_shapes(config), 0)
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"][:-1]
    write_component(tmp_path, config, tensors, "model")
    with pytest.raises(CheckpointError, match=r"1 misshapen: encoder\.embed_tokens\.weight is \[979, 32\]"):
        T5EncoderModel.from_pretrained(tmp_path)


def test_the_decoder_of_a_whole_t5_is_left_alone(tmp_path):
    config = t5_config()
    tensors = random_tensors(t5_shapes(config), 0)
    extra = {"decoder.block.0.layer.0.SelfAttention.q.weight": (32, 32), "lm_head.weight": (T5_VOCAB, 32)}
    write_component(tmp_path, config, tensors | random_tensors(extra, 0), "model")
    ids = ids_of(1, 6)
    assert error(T5EncoderModel.from_pretrained(tmp_path)(ids), t5_encoder(tensors, config, ids)) < 1e-5


def test_shards_load_as_one(tmp_path):
    config = write_t5(tmp_path, shards=3)
    ids = ids_of(1, 6)
    expected = t5_encoder(random_tensors(t5_shapes(config), 0), config, ids)
    assert error(T5EncoderModel.from_pretrained(tmp_path)(ids), expected) < 1e-5


def test_masks_of_another_shape_are_refused(tmp_path):
    write_t5(tmp_path)
    with pytest.raises(
        ValueError, match=r"attention_mask \[1, 3\] must have the shape of input_ids \[1, 4\]"
    ):
        T5EncoderModel.from_pretrained(tmp_path)(ids_of(1, 4), np.ones((1, 3)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_decoder": True}, "is_decoder=True is not supported"),
        ({"model_type": "umt5"}, "model_type='umt5'"),
        ({"feed_forward_proj": "gated-mish"}, "feed_forward_proj='mish' is not supported; supported: gelu, "),
        ({"relative_attention_max_distance": 8}, "relative_attention_max_distance=8 must exceed"),
    ],
)
def test_configs_that_are_not_supported_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        T5Config.from_dict(t5_config(**changes))


@pytest.mark.parametrize("kind", ["gated-gelu", "relu"])
@pytest.mark.parametrize(("degree", "world"), [(2, 2), (3, 4), (5, 5)])
def test_ranks_that_share_the_encoder_give_what_one_rank_gives(tmp_path, kind, degree, world):
    """Five heads and 48 hidden channels; ranks beyond the overlay have the encoder for themselves."""
    config = write_t5(tmp_path, feed_forward_proj=kind, num_heads=5)
    ids, mask = ids_of(2, 12), np.arange(12)[None] < np.array([[5], [12]])
    expected = t5_encoder(random_tensors(t5_shapes(config), 0), config, ids, mask)

    def run(context):
        model = T5EncoderModel.from_pretrained(tmp_path, threads=1, parallel=context)
        return model(ids, mask), model.weights.nbytes

    results = ParallelContext.local(world, run, ulysses_degree=world, text_encoder_degree=degree)
    for rank, (output, nbytes) in enumerate(results):
        assert error(output[1], expected[1]) < 1e-5
        if rank < degree:
            np.testing.assert_array_equal(output, results[0][0])
        assert (nbytes < results[-1][1]) == (rank < degree < world)


def test_more_ranks_than_heads_are_refused():
    parallel = ParallelConfig.for_plan(ulysses_degree=9, text_encoder_degree=9)
    with pytest.raises(ValueError, match=r"text_encoder_degree 9 is more than the 8 heads of T5; legal: 1 to 8"):
        T5EncoderModel.check_parallel(T5Config(), parallel)
