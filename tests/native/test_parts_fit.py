"""Parts of different models are refused by their configs, before any weight is read."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file
from single_files import TOLD_FLUX, original, read_component
from tiny import write_clip, write_flux_pipeline, write_json, write_t5, write_vae
from tiny_sd3 import write_clip_with_projection, write_sd3_pipeline

from edgedit.pipelines.parts import PartFiles
from edgedit.pipelines.settings import read_settings


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    return write_flux_pipeline(tmp_path_factory.mktemp("fit") / "flux", **TOLD_FLUX)


@pytest.fixture(scope="module")
def sd3(tmp_path_factory):
    return write_sd3_pipeline(tmp_path_factory.mktemp("fit") / "sd3")


def test_parts_of_their_family_with_other_sizes_inside_fit(flux, sd3, tmp_path):
    write_t5(tmp_path / "t5", d_ff=32, num_layers=1)
    read_settings(flux, PartFiles(t5=tmp_path / "t5"))
    write_clip_with_projection(tmp_path / "clip", hidden_size=24, projection_dim=16)
    read_settings(sd3, PartFiles(clip_l=tmp_path / "clip"))


def test_sizes_that_a_config_does_not_state_are_not_judged(flux, tmp_path):
    clip = shutil.copytree(flux / "text_encoder", tmp_path / "clip")
    content = json.loads((clip / "config.json").read_text())
    del content["hidden_size"]
    write_json(clip / "config.json", content)
    read_settings(flux, PartFiles(clip_l=clip))
    write_json(clip / "config.json", {"text_config": content | {"hidden_size": 8}})
    with pytest.raises(ValueError, match=r"text_encoder gives 8 \(hidden_size, .*clip\)"):
        read_settings(flux, PartFiles(clip_l=clip))


@pytest.mark.parametrize(
    ("part", "write", "changes", "words"),
    [
        ("clip_l", write_clip, {"hidden_size": 32},
         r"takes 64 channels \(pooled_projection_dim\), but text_encoder gives 32 \(hidden_size, .*clip_l\)"),
        ("t5", write_t5, {"d_model": 40},
         r"takes 32 channels \(joint_attention_dim\), but text_encoder_2 gives 40 \(d_model, .*t5\)"),
        ("vae", write_vae, {"latent_channels": 16}, r"of 4 channels, but vae has 16 \(latent_channels, .*vae\)"),
    ],
)  # fmt: skip
def test_widths_that_flux_does_not_take(flux, tmp_path, part, write, changes, words):
    write(tmp_path / part, **changes)
    with pytest.raises(ValueError, match=words):
        read_settings(flux, PartFiles(**{part: tmp_path / part}))


@pytest.mark.parametrize(
    ("part", "write", "changes", "words"),
    [
        ("clip_g", write_clip_with_projection, {"projection_dim": 16},
         r"takes 40 channels \(pooled_projection_dim\), but text_encoder gives 16 \(projection_dim, .*\) and "
         r"text_encoder_2 gives 16 \(projection_dim, .*clip_g\)"),
        ("clip_l", write_clip_with_projection, {"hidden_size": 48, "projection_dim": 16},
         r"text of 80 channels \(joint_attention_dim\), but both CLIP encoders give 88 \(hidden_size\)"),
        ("t5", write_t5, {"d_model": 32}, r"takes 80 channels .*, but text_encoder_3 gives 32 \(d_model, .*t5\)"),
        ("vae", write_vae, {"latent_channels": 16}, r"of 4 channels, but vae has 16 \(latent_channels, .*vae\)"),
    ],
)  # fmt: skip
def test_widths_that_stable_diffusion_3_does_not_take(sd3, tmp_path, part, write, changes, words):
    write(tmp_path / part, **changes)
    with pytest.raises(ValueError, match=words):
        read_settings(sd3, PartFiles(**{part: tmp_path / part}))


def test_networks_of_another_kind_are_named(flux, sd3, tmp_path):
    file = tmp_path / "flux.safetensors"
    save_file(original("flux", read_component(flux / "transformer")), file)
    for path in (file, flux / "transformer"):
        with pytest.raises(ValueError, match=r"holds FluxTransformer2DModel; .* needs SD3Transformer2DModel"):
            read_settings(sd3, PartFiles(transformer=path))
    with pytest.raises(ValueError, match=r"given for clip_l, but holds T5EncoderModel; .* needs CLIPTextModel"):
        read_settings(flux, PartFiles(clip_l=flux / "text_encoder_2"))


def test_tokenizers_of_another_encoder_are_named(flux, sd3, tmp_path):
    assert read_settings(flux, PartFiles(tokenizer_dir=flux)).parts.tokenizer("tokenizer") == flux / "tokenizer"
    with pytest.raises(ValueError, match=r"tokenizer_2 is a tokenizer of CLIP, where one of T5EncoderModel is needed"):
        read_settings(flux, PartFiles(tokenizer_dir=sd3))
    for name in ("tokenizer", "tokenizer_2"):
        shutil.copytree(flux / name, tmp_path / name)
    shutil.copytree(sd3 / "tokenizer_3", tmp_path / "tokenizer_3")
    with pytest.raises(ValueError, match=r"tokenizer_2 is a tokenizer of T5, where one of CLIPTextModelWithProjection"):
        read_settings(sd3, PartFiles(tokenizer_dir=tmp_path))


def test_widths_that_do_not_make_whole_heads_name_the_file(flux, tmp_path):
    tensors = original("flux", read_component(flux / "transformer"))
    file = tmp_path / "flux.safetensors"
    save_file(tensors | {"img_in.weight": np.zeros((64, 7), np.float32)}, file)
    with pytest.raises(ValueError, match=r"flux\.safetensors: 64 channels .* heads of 128"):
        read_settings(flux, PartFiles(transformer=file))
