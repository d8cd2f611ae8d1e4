"""Spellings of LoRA modules on models of full size, from shapes alone: each names one set of rows, and together all."""

import numpy as np
import pytest

from edgedit.models.adapters import adaptable
from edgedit.models.flux import FluxConfig, FluxNetwork
from edgedit.models.sd3 import SD3Config, SD3Network
from edgedit.weights.lora_spellings import vocabulary

FULL = {
    "FluxPipeline": lambda: FluxNetwork(FluxConfig(guidance_embeds=True)),
    "StableDiffusion3Pipeline": lambda: SD3Network(
        SD3Config(
            num_layers=24,
            num_attention_heads=24,
            caption_projection_dim=1536,
            dual_attention_layers=tuple(range(13)),
            qk_norm="rms_norm",
        )
    ),
}
SIGNS = {"FluxPipeline": ("double_blocks", "single_blocks"), "StableDiffusion3Pipeline": ("joint_blocks",)}


@pytest.mark.parametrize("family", FULL)
def test_original_and_own_names_each_cover_every_row_once(family):
    weights = adaptable(FULL[family]())
    words = vocabulary(family, "transformer", weights)
    own = {name.removesuffix(".weight") for name in weights}
    original = words.modules.keys() - own
    shared = {name for name in own if name == "context_embedder" and family != "FluxPipeline"}
    for names in (own, original | shared):
        counts = {name: np.zeros(shape[0], int) for name, shape in weights.items()}
        for name in names:
            pieces = words.modules[name]
            assert [piece.begin for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
            for piece in pieces:
                counts[piece.parameter][piece.first : piece.first + piece.length] += 1
        assert all((count == 1).all() for count in counts.values())
    assert all(sum(name.startswith(sign) for name in original) > 100 for sign in SIGNS[family])


@pytest.mark.parametrize("family", FULL)
def test_dots_and_underscores_lead_to_the_same(family):
    weights = adaptable(FULL[family]())
    words = vocabulary(family, "transformer", weights)
    flat = {name.replace(".", "_") for name in words.modules}
    assert len(flat) == len(words.modules)
    for name, pieces in list(words.modules.items())[::7]:
        assert words.find(f"transformer.{name}") == words.find(f"diffusion_model.{name}") == pieces
        assert words.find(f"lora_unet_{name.replace('.', '_')}") == words.find(name) == pieces
        assert words.find(f"text_encoder.{name}") is None
