"""The autoencoder against a float64 reference, and the ways it is published."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_layers import F16_TOLERANCE
from reference import vae_decode, vae_encode
from tiny import random_tensors, write_component, write_vae
from tiny_shapes import vae_config, vae_shapes

from edgedit.graph.ops import image
from edgedit.models.autoencoder_kl import AutoencoderKL, AutoencoderKLConfig

CONFIGS = {
    "default": {},
    "three blocks, two layers": {"block_out_channels": [8, 12, 16], "layers_per_block": 2},
    "quant convolutions": {"use_quant_conv": True, "use_post_quant_conv": True, "norm_num_groups": 2},
    "one block, no attention, relu": {
        "block_out_channels": [16],
        "mid_block_add_attention": False,
        "act_fn": "relu",
        "latent_channels": 3,
    },
}


def values_of(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def error(actual, expected):
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [(6, 4), (1, 1), (3, 5)])
def test_decoded_pixels_equal_the_reference(tmp_path, name, size):
    config = write_vae(tmp_path, **CONFIGS[name])
    latents = values_of(2, config["latent_channels"], *size)
    expected = vae_decode(random_tensors(vae_shapes(config), 0), config, latents)
    assert error(AutoencoderKL.from_pretrained(tmp_path).decode(latents), expected) < 1e-5


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [(16, 8), (9, 11), (4, 5)])
def test_encoded_moments_equal_the_reference(tmp_path, name, size):
    config = write_vae(tmp_path, **CONFIGS[name])
    pixels = values_of(2, 3, *size)
    expected = vae_encode(random_tensors(vae_shapes(config), 0), config, pixels)
    mean, logvar = AutoencoderKL.from_pretrained(tmp_path).encode(pixels)
    expected_mean, expected_logvar = np.split(expected, 2, axis=1)
    assert error(mean, expected_mean) < 1e-5
    assert error(logvar, expected_logvar.clip(-30, 20)) < 1e-5


def test_log_variance_is_kept_in_range(tmp_path):
    config = vae_config()
    tensors = random_tensors(vae_shapes(config), 0)
    tensors["encoder.conv_out.bias"][4:] = [100, -100, 100, -100]
    write_component(tmp_path, config, tensors, "diffusion_pytorch_model")
    _, logvar = AutoencoderKL.from_pretrained(tmp_path).encode(values_of(1, 3, 8, 8))
    assert sorted(set(logvar.ravel())) == [-30, 20]


def test_direct_convolution_gives_the_same_picture(tmp_path, monkeypatch):
    config = write_vae(tmp_path)
    latents = values_of(1, config["latent_channels"], 6, 6)
    with_columns = AutoencoderKL.from_pretrained(tmp_path).decode(latents)
    monkeypatch.setattr(image, "MAX_IM2COL_NBYTES", 0)
    directly = AutoencoderKL.from_pretrained(tmp_path).decode(latents)
    assert error(directly, with_columns) < 1e-5


@pytest.mark.parametrize(("dtype", "tolerance"), [("f16", F16_TOLERANCE), ("bf16", 3e-2)])
def test_narrow_compute_types_stay_close(tmp_path, dtype, tolerance):
    config = write_vae(tmp_path)
    latents = values_of(1, config["latent_channels"], 6, 6)
    expected = vae_decode(random_tensors(vae_shapes(config), 0), config, latents)
    actual = AutoencoderKL.from_pretrained(tmp_path, compute_dtype=dtype).decode(latents)
    assert 0 < error(actual, expected) < tolerance


def test_attention_wider_than_any_text_model_equals_the_reference(tmp_path):
    config = write_vae(tmp_path, block_out_channels=[512], norm_num_groups=32)
    latents = values_of(1, config["latent_channels"], 9, 9)
    expected = vae_decode(random_tensors(vae_shapes(config), 0), config, latents)
    assert error(AutoencoderKL.from_pretrained(tmp_path).decode(latents), expected) < 1e-5


def test_the_old_names_of_the_attention_load(tmp_path):
    config = vae_config()
    tensors = random_tensors(vae_shapes(config), 0)
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    renamed = {}
    for key, values in tensors.items():
        for new_name, old_name in old.items():
            key = key.replace(f"attentions.0.{new_name}.", f"attentions.0.{old_name}.")
        renamed[key] = values
    assert any("proj_attn" in key for key in renamed)
    write_component(tmp_path, config, renamed, "diffusion_pytorch_model")
    latents = values_of(1, config["latent_channels"], 4, 4)
    assert (
        error(AutoencoderKL.from_pretrained(tmp_path).decode(latents), vae_decode(tensors, config, latents))
        < 1e-5
    )


@pytest.mark.parametrize(
    ("call", "shape", "message"),
    [
        (
            "decode",
            (1, 5, 4, 4),
            r"latents must be \[B, 4, H, W\] with sides of at least 1, got \[1, 5, 4, 4\]",
        ),
        ("decode", (4, 4, 4), r"latents must be \[B, 4, H, W\]"),
        ("decode", (1, 4, 0, 4), r"sides of at least 1"),
        (
            "encode",
            (1, 3, 1, 8),
            r"pixels must be \[B, 3, H, W\] with sides of at least 2, got \[1, 3, 1, 8\]",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(tmp_path, call, shape, message):
    write_vae(tmp_path)
    with pytest.raises(ValueError, match=message):
        getattr(AutoencoderKL.from_pretrained(tmp_path), call)(values_of(*shape))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"act_fn": "mish"}, "act_fn='mish' is not supported; supported: gelu, "),
        ({"norm_num_groups": 3}, r"block_out_channels=\[8, 16\] must all be multiples of norm_num_groups=3"),
        (
            {"down_block_types": ["DownEncoderBlock2D", "AttnDownEncoderBlock2D"]},
            r"down_block_types=\['DownEncoderBlock2D', 'AttnDownEncoderBlock2D'\] is not supported; "
            r"supported: 2 x 'DownEncoderBlock2D'",
        ),
        ({"up_block_types": ["UpDecoderBlock2D"]}, r"up_block_types=\['UpDecoderBlock2D'\] is not supported"),
    ],
)
def test_configs_that_are_not_supported_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        AutoencoderKLConfig.from_dict(vae_config(**changes))
