"""CLIP text encoder against transformers."""

from __future__ import annotations

import numpy as np
import pytest
from relative_error import relative_error
from tiny import EMBEDDED, write_clip
from tiny_sd3 import write_clip_with_projection
from tiny_shapes import CLIP_EOS

from edgedit.models.clip import CLIPTextModel, CLIPTextModelWithProjection

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIGS = {
    "quick_gelu": {},
    "gelu, odd sizes": {
        "hidden_act": "gelu",
        "hidden_size": 42,
        "num_attention_heads": 3,
        "intermediate_size": 50,
    },
    "legacy eos, long": {"eos_token_id": 2, "max_position_embeddings": 77, "num_hidden_layers": 3},
    "large eps": {"layer_norm_eps": 1e-2, "num_attention_heads": 1},
}


def prompts(length, batch=3, seed=0):
    """Ids that end in eos at different places, padded with eos; the last prompt holds no eos at all."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, 2000, (batch, length))
    for row, end in enumerate(rng.integers(1, length, batch - 1)):
        ids[row, end:] = CLIP_EOS
    return ids


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("prefix", ["text_model.", ""])
def test_hidden_states_and_pooled_vectors_agree(tmp_path, name, prefix):
    config = write_clip(tmp_path, seed=1, prefix=prefix, **CONFIGS[name])
    ids = prompts(config["max_position_embeddings"])
    with torch.no_grad():
        expected = transformers.CLIPTextModel.from_pretrained(tmp_path, dtype=torch.float32)(
            torch.from_numpy(ids)
        )
    hidden, pooled = CLIPTextModel.from_pretrained(tmp_path)(ids)
    assert relative_error(hidden, expected.last_hidden_state) < 1e-5
    assert relative_error(pooled, expected.pooler_output) < 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_states_before_the_last_layer_and_projections_agree(tmp_path, name):
    config = write_clip_with_projection(tmp_path, seed=1, projection_dim=24, **CONFIGS[name])
    ids = prompts(config["max_position_embeddings"])
    reference = transformers.CLIPTextModelWithProjection.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids), output_hidden_states=True)
    states, projected = CLIPTextModelWithProjection.from_pretrained(tmp_path)(ids)
    assert relative_error(states, expected.hidden_states[-2]) < 1e-5
    assert relative_error(projected, expected.text_embeds) < 1e-5


def test_the_embedded_encoder_agrees():
    ids = prompts(16)
    with torch.no_grad():
        expected = transformers.CLIPTextModel.from_pretrained(EMBEDDED / "text_encoder", dtype=torch.float32)(
            torch.from_numpy(ids)
        )
    _, pooled = CLIPTextModel.from_pretrained(EMBEDDED / "text_encoder")(ids)
    assert relative_error(pooled, expected.pooler_output) < 1e-5
