"""Families and configs of full-size models, told from the names and shapes of their files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tiny_shapes import clip_config, clip_shapes, t5_config, t5_shapes, vae_config, vae_shapes

from edgedit import presets
from edgedit.models.architectures import transformer_class
from edgedit.models.autoencoder_kl import AutoencoderKLConfig
from edgedit.models.clip import CLIPTextConfig
from edgedit.models.t5 import T5Config
from edgedit.weights.name_map import architecture
from edgedit.weights.recognise import find_components
from edgedit.weights.told import config_of


class Shapes:
    """A source of names and shapes without values."""

    path = Path("shapes")
    metadata: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, shapes):
        self.shapes = shapes

    def keys(self):
        return list(self.shapes)

    def __iter__(self):
        return iter(self.shapes)

    def __contains__(self, key):
        return key in self.shapes

    def shape(self, key):
        return self.shapes[key]

    def dtype(self, key):
        return "BF16"

    def scale(self, key):
        return None


def in_file(kind, shapes, spelling, prefix=""):
    """Shapes under the names of a spelling."""
    written = {}
    for name, targets in architecture(kind).spelling(spelling).bind([]).sources(shapes).items():
        rows = [shapes[target.name] for target in targets]
        whole = (sum(shape[0] for shape in rows), *rows[0][1:]) if rows[0] else ()
        written[prefix + name] = whole[::-1] if targets[0].transpose else whole
    return Shapes(written)


def only(source):
    (component,) = find_components(source)
    return component


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("preset", presets.names())
def test_transformers(preset, prefix):
    content = presets.read(preset)["transformer"]
    model = transformer_class(content)
    config = model.config_class.from_dict(content)
    shapes = {name: p.shape for name, p in model.build_network(config).named_parameters()}
    component = only(in_file(model.architecture, shapes, "original", prefix))
    assert (component.architecture.class_name, component.part) == (content["_class_name"], "transformer")
    assert component.prefix == prefix
    told = model.config_class.from_dict(config_of(component))
    if told.out_channels != config.out_channels:  # that it is in_channels may be said or not
        assert told.out_channels is None
        assert config.out_channels in (None, config.in_channels)
        told = dataclasses.replace(told, out_channels=config.out_channels)
    assert told == config


def test_autoencoder():
    content = vae_config(
        block_out_channels=[128, 256, 512, 512], layers_per_block=2, norm_num_groups=32, latent_channels=16,
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
        use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip
    component = only(in_file("autoencoder_kl", vae_shapes(content), "original", "first_stage_model."))
    assert component.part == "vae"
    assert AutoencoderKLConfig.from_dict(config_of(component)) == AutoencoderKLConfig.from_dict(content)


CLIP_L = clip_config(
    vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
    max_position_embeddings=77, hidden_act="quick_gelu", projection_dim=768, eos_token_id=2,
)  # fmt: skip
CLIP_G = CLIP_L | {
    "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20,
    "hidden_act": "gelu", "projection_dim": 1280,
}  # fmt: skip


@pytest.mark.parametrize(("content", "part"), [(CLIP_L, "clip_l"), (CLIP_G, "clip_g")])
@pytest.mark.parametrize("spelling", ["transformers", "open_clip"])
def test_clip(content, part, spelling):
    shapes = clip_shapes(content) | {"text_projection.weight": (content["projection_dim"], content["hidden_size"])}
    component = only(in_file("clip", shapes, spelling))
    assert component.part == part
    assert CLIPTextConfig.from_dict(config_of(component)) == CLIPTextConfig.from_dict(content)


@pytest.mark.parametrize("spelling", ["transformers", "llama.cpp"])
def test_t5(spelling):
    content = t5_config(vocab_size=32128, d_model=4096, num_layers=24, num_heads=64, d_kv=64, d_ff=10240)
    component = only(in_file("t5", t5_shapes(content), spelling))
    assert component.part == "t5"
    assert T5Config.from_dict(config_of(component)) == T5Config.from_dict(content)


def test_prefixes_tell_two_encoders_of_one_size_apart():
    tiny = {f"text_encoders.{name}.transformer.{key}": shape for name in ("clip_l", "clip_g")
            for key, shape in clip_shapes(clip_config()).items()}  # fmt: skip
    assert sorted(component.part for component in find_components(Shapes(tiny))) == ["clip_g", "clip_l"]


def test_hints_that_contradict_a_shape_are_not_heeded():
    shapes = clip_shapes(clip_config(hidden_size=128, num_attention_heads=4))
    component = only(Shapes(shapes))
    heeded = config_of(component, {"hidden_size": 128, "num_attention_heads": 4})
    ignored = config_of(component, {"hidden_size": 64, "num_attention_heads": 4})
    assert (heeded["num_attention_heads"], ignored["num_attention_heads"]) == (4, 2)
    assert heeded["hidden_size"] == ignored["hidden_size"] == 128
