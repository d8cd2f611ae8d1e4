"""T5 encoder against transformers."""

from __future__ import annotations

import numpy as np
import pytest
from relative_error import relative_error
from tiny import EMBEDDED, write_t5
from tiny_shapes import T5_VOCAB

from edgedit.models.t5 import T5EncoderModel, relative_position_buckets

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIGS = {
    "gated-gelu": {},
    "relu, one bucket table of another size": {
        "feed_forward_proj": "relu",
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 20,
    },
    "gated-silu, heads wider than the model": {"feed_forward_proj": "gated-silu", "d_kv": 24, "num_heads": 3},
    "gelu, deep": {"feed_forward_proj": "gelu", "num_layers": 6, "d_model": 40, "d_ff": 33},
}


def reference(directory, ids, mask=None):
    model = transformers.T5EncoderModel.from_pretrained(directory, dtype=torch.float32)
    mask = None if mask is None else torch.from_numpy(mask)
    with torch.no_grad():
        return model(torch.from_numpy(ids), attention_mask=mask).last_hidden_state


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("length", [5, 150])
def test_hidden_states_agree(tmp_path, name, length):
    write_t5(tmp_path, seed=2, **CONFIGS[name])
    ids = np.random.default_rng(0).integers(0, T5_VOCAB, (2, length))
    assert relative_error(T5EncoderModel.from_pretrained(tmp_path)(ids), reference(tmp_path, ids)) < 1e-5


def test_masked_padding_agrees(tmp_path):
    write_t5(tmp_path, seed=3)
    ids = np.random.default_rng(0).integers(0, T5_VOCAB, (3, 16))
    mask = (np.arange(16)[None] < np.array([[5], [16], [1]])).astype(np.int64)
    actual = T5EncoderModel.from_pretrained(tmp_path)(ids, mask)
    assert relative_error(actual, reference(tmp_path, ids, mask)) < 1e-5
    assert np.abs(actual - T5EncoderModel.from_pretrained(tmp_path)(ids)).max() > 1e-2


def test_the_embedded_encoder_agrees():
    directory = EMBEDDED / "text_encoder_2"
    ids = np.random.default_rng(0).integers(0, T5_VOCAB, (2, 16))
    assert relative_error(T5EncoderModel.from_pretrained(directory)(ids), reference(directory, ids)) < 1e-5


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (64, 256), (12, 50), (32, 100)])
def test_every_position_falls_into_the_same_bucket(buckets, distance):
    from transformers.models.t5.modeling_t5 import T5Attention

    positions = torch.arange(700)
    expected = T5Attention._relative_position_bucket(
        positions[None] - positions[:, None], True, buckets, distance
    )
    np.testing.assert_array_equal(relative_position_buckets(700, buckets, distance), expected.numpy())
