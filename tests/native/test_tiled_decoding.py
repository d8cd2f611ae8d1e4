"""Decoding in tiles: the same picture from less memory, on one rank and shared out over ranks."""

import json

import numpy as np
import pytest
from PIL import Image
from reference import vae_decode
from tiny import random_tensors, write_flux_pipeline, write_vae
from tiny_shapes import vae_shapes

from edgedit import cli
from edgedit.config import ParallelConfig
from edgedit.models.autoencoder_kl import AutoencoderKL
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline

CONFIGS = {
    "two blocks": ({}, 24),
    "three blocks, two layers": ({"block_out_channels": [8, 12, 16], "layers_per_block": 2}, 33),
    "one block": ({"block_out_channels": [16], "use_post_quant_conv": True}, 24),
}


def latents_of(config, *size, batch=1):
    shape = (batch, config["latent_channels"], *size)
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("name", CONFIGS)
def test_tiles_of_odd_sizes_give_the_picture_of_the_reference(tmp_path, name):
    changes, tile = CONFIGS[name]
    config = write_vae(tmp_path, **changes)
    latents = latents_of(config, 29, 17, batch=2)
    expected = vae_decode(random_tensors(vae_shapes(config), 0), config, latents)
    model = AutoencoderKL.from_pretrained(tmp_path, threads=1)
    decoded = model.decode(latents, tile)
    assert np.abs(decoded - expected).max() < 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(decoded, model.decode(latents), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("ranks", "size", "tile"),
    [(2, (29, 17), 24), (3, (29, 17), 24), (3, (29, 17), 40), (3, (2, 37), 24)],
    ids=str,
)
def test_ranks_share_tiles_out(tmp_path, ranks, size, tile):
    """Ten tiles over 2 and 3 ranks, two tiles over 3 ranks, of which one has none, and a rank without rows."""
    config = write_vae(tmp_path)
    latents = latents_of(config, *size)
    expected = AutoencoderKL.from_pretrained(tmp_path, threads=1).decode(latents)

    def run(context):
        return AutoencoderKL.from_pretrained(tmp_path, threads=1, parallel=context).decode(latents, tile)

    results = ParallelContext.local(ranks, run, ulysses_degree=ranks, vae_degree=ranks)
    for decoded in results:
        np.testing.assert_array_equal(decoded, results[0])
        np.testing.assert_allclose(decoded, expected, rtol=0, atol=1e-5)


def test_tiles_take_less_memory_than_the_picture(tmp_path, monkeypatch):
    write_vae(tmp_path)
    model = AutoencoderKL.from_pretrained(tmp_path, threads=1)
    taken = {}
    original = model.release

    def release(key):
        taken[key] = model._executors[key].compute_nbytes
        original(key)

    monkeypatch.setattr(model, "release", release)
    latents = latents_of(model.config.__dict__, 64, 64)
    model.decode(latents, 32)
    (head,) = model._executors.values()
    model.decode(latents)
    _, whole = model._executors.values()
    assert len(taken) == model.config.tail_norms + 1
    assert head.compute_nbytes + max(taken.values()) < 0.75 * whole.compute_nbytes


def test_a_picture_that_fits_a_tile_is_decoded_whole(tmp_path, monkeypatch):
    write_vae(tmp_path)
    model = AutoencoderKL.from_pretrained(tmp_path, threads=1)
    latents = latents_of(model.config.__dict__, 12, 7)
    expected = model.decode(latents)
    monkeypatch.setattr(model, "release", None)  # of tiles only
    np.testing.assert_array_equal(model.decode(latents, 24), expected)


def test_the_embedded_model_draws_the_same_picture_in_tiles(tmp_path, capsys):
    pictures = {}
    for name, tiling in {"whole": [], "tiles": ["--vae-tiling", "48"]}.items():
        picture = tmp_path / f"{name}.png"
        command = [
            "generate",
            "-p",
            "a red apple",
            "--steps",
            "4",
            "-s",
            "0",
            "--width",
            "112",
            "--height",
            "80",
        ]
        assert cli.main([*command, "--json", "-o", str(picture), *tiling]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["outputs"] == [str(picture)]
        pictures[name] = np.asarray(Image.open(picture)).astype(float)
    error = np.square(pictures["whole"] - pictures["tiles"]).mean()
    assert error == 0 or 10 * np.log10(255**2 / error) > 45


def test_tiles_that_are_too_small_are_refused_before_anything_runs(tmp_path, capsys):
    assert (
        cli.main(["generate", "-p", "a", "--vae-tiling", "23", "-o", str(tmp_path / "a.png")])
        == cli.BAD_INPUT
    )
    assert "tiles of 23 px are too small for this autoencoder; at least 24 px" in capsys.readouterr().err
    assert (
        cli.main(["generate", "-p", "a", "--vae-tiling", "0", "-o", str(tmp_path / "a.png")]) == cli.BAD_INPUT
    )
    assert "--vae-tiling is 0; at least 1 is needed" in capsys.readouterr().err


def test_a_pipeline_over_ranks_decodes_in_tiles(tmp_path):
    directory = write_flux_pipeline(tmp_path / "flux", heads=2, t5_length=9)
    call = {"num_inference_steps": 1, "height": 40, "width": 28, "seed": 3}
    with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as pipeline:
        expected = pipeline("a cat", **call)

    def run(context):
        pipeline = Pipeline.from_pretrained(directory, threads=1, parallel=context)
        return pipeline("a cat", **call, vae_tile=24)

    results = ParallelContext.local(2, run, ulysses_degree=2, vae_degree=2)
    picture, wanted = (np.asarray(result.images[0]).astype(int) for result in (results[0], expected))
    assert np.abs(picture - wanted).max() <= 1  # a value between two steps of colour may fall to either
