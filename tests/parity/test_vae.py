"""AutoencoderKL against diffusers."""

from __future__ import annotations

import numpy as np
import pytest
from relative_error import relative_error
from tiny import EMBEDDED, write_vae

from edgedit.models.autoencoder_kl import AutoencoderKL

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

CONFIGS = {
    "as FLUX": {"block_out_channels": [8, 16, 16, 16], "latent_channels": 16, "layers_per_block": 2},
    "quant convolutions": {"use_quant_conv": True, "use_post_quant_conv": True, "norm_num_groups": 2},
    "no attention": {"mid_block_add_attention": False, "block_out_channels": [12, 8, 20]},
    "one block, relu": {"block_out_channels": [16], "act_fn": "relu", "latent_channels": 3},
    "gelu": {"act_fn": "gelu", "in_channels": 1, "out_channels": 1},
}


def reference(directory):
    return diffusers.AutoencoderKL.from_pretrained(directory)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [(8, 8), (5, 9)])
def test_decoded_pixels_agree(tmp_path, name, size):
    config = write_vae(tmp_path, seed=4, **CONFIGS[name])
    latents = np.random.default_rng(0).standard_normal(
        (2, config["latent_channels"], *size), dtype=np.float32
    )
    with torch.no_grad():
        expected = reference(tmp_path).decode(torch.from_numpy(latents)).sample
    assert relative_error(AutoencoderKL.from_pretrained(tmp_path).decode(latents), expected) < 1e-5


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("size", [(32, 32), (21, 35)])
def test_encoded_moments_agree(tmp_path, name, size):
    config = write_vae(tmp_path, seed=5, **CONFIGS[name])
    pixels = np.random.default_rng(0).standard_normal((2, config["in_channels"], *size), dtype=np.float32)
    with torch.no_grad():
        expected = reference(tmp_path).encode(torch.from_numpy(pixels)).latent_dist
    mean, logvar = AutoencoderKL.from_pretrained(tmp_path).encode(pixels)
    assert relative_error(mean, expected.mean) < 1e-5
    assert relative_error(logvar, expected.logvar) < 1e-5


def test_the_embedded_autoencoder_agrees():
    latents = np.random.default_rng(0).standard_normal((1, 16, 8, 8), dtype=np.float32)
    with torch.no_grad():
        expected = diffusers.AutoencoderKL.from_pretrained(
            EMBEDDED / "vae", torch_dtype=torch.float32
        ).decode(torch.from_numpy(latents))
    assert (
        relative_error(AutoencoderKL.from_pretrained(EMBEDDED / "vae").decode(latents), expected.sample)
        < 1e-5
    )
