"""The autoencoder's rows over ranks, as threads: what one rank decodes, whatever the rows and ranks."""

import numpy as np
import pytest
from reference import vae_decode
from tiny import random_tensors, write_flux_pipeline, write_vae
from tiny_shapes import vae_shapes

from edgedit.config import ParallelConfig
from edgedit.models.autoencoder_kl import AutoencoderKL
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline
from edgedit.pipelines.settings import read_settings
from edgedit.sequence import rows

CONFIGS = {
    "default": {},
    "three blocks, two layers": {"block_out_channels": [8, 12, 16], "layers_per_block": 2},
    "quant convolutions": {"use_quant_conv": True, "use_post_quant_conv": True, "norm_num_groups": 2},
    "one block, no attention": {"block_out_channels": [16], "mid_block_add_attention": False},
}


def latents_of(config, *size, batch=2):
    shape = (batch, config["latent_channels"], *size)
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def on_ranks(directory, size, latents, **options):
    def run(context):
        return AutoencoderKL.from_pretrained(directory, threads=1, parallel=context).decode(latents)

    return ParallelContext.local(size, run, ulysses_degree=size, vae_degree=size, **options)


@pytest.mark.parametrize(("ranks", "size"), [(2, (6, 4)), (3, (7, 3)), (4, (3, 5)), (2, (1, 2))], ids=str)
def test_rows_over_ranks_decode_to_what_one_rank_does(tmp_path, ranks, size):
    """Uneven rows, and fewer rows than ranks; held against one rank and against a reference in float64."""
    config = write_vae(tmp_path)
    latents = latents_of(config, *size)
    alone = AutoencoderKL.from_pretrained(tmp_path, threads=1).decode(latents)
    expected = vae_decode(random_tensors(vae_shapes(config), 0), config, latents)
    for decoded in on_ranks(tmp_path, ranks, latents):
        assert decoded.shape == alone.shape
        np.testing.assert_allclose(decoded, alone, rtol=0, atol=1e-5)
        assert np.abs(decoded - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "ops"), [*((name, "fused") for name in CONFIGS), ("quant convolutions", "generic")]
)
def test_every_form_of_the_network_decodes_over_ranks(tmp_path, name, ops):
    config = write_vae(tmp_path, **CONFIGS[name])
    latents = latents_of(config, 5, 3)
    expected = vae_decode(random_tensors(vae_shapes(config), 0), config, latents)
    for decoded in on_ranks(tmp_path, 3, latents, ops=ops):
        assert np.abs(decoded - expected).max() < 1e-5 * np.abs(expected).max()


def test_rows_too_large_to_be_written_in_place_are_joined(tmp_path, monkeypatch):
    config = write_vae(tmp_path)
    latents = latents_of(config, 5, 3)
    expected = on_ranks(tmp_path, 2, latents)
    monkeypatch.setattr(rows, "MAX_WRITE_NBYTES", 0)
    for decoded in on_ranks(tmp_path, 2, latents):
        np.testing.assert_array_equal(decoded, expected[0])


def test_one_pixel_of_a_rank_reaches_the_rows_of_the_others(tmp_path):
    config = write_vae(tmp_path, mid_block_add_attention=False)
    latents = latents_of(config, 6, 4, batch=1)
    changed = latents.copy()
    changed[0, 0, 3, 1] += 1
    before, after = (on_ranks(tmp_path, 3, values)[0] for values in (latents, changed))
    assert (np.abs(after - before).max((0, 1, 3)) > 1e-4).all()  # through sums of norms, and from row to row


# pipelines

CALL = {"num_inference_steps": 2, "height": 12, "width": 20, "seed": 3}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_flux_pipeline(tmp_path_factory.mktemp("model") / "flux", heads=3, t5_length=9)


@pytest.mark.parametrize(
    "degrees",
    [{"ulysses_degree": 3, "vae_degree": 2}, {"cfg_degree": 2, "dp_degree": 2, "vae_degree": 4}],
    ids=str,
)
def test_pictures_are_those_of_one_rank(directory, degrees):
    prompts = ["a cat", "two red dogs"]
    with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as pipeline:
        expected = pipeline(prompts, **CALL)

    def run(context):
        pipeline = Pipeline.from_pretrained(directory, threads=1, parallel=context)
        assert (pipeline.vae is not None) == (context.rank < degrees["vae_degree"])
        return pipeline(prompts, **CALL)

    size = int(np.prod([degree for name, degree in degrees.items() if name != "vae_degree"]))
    results = ParallelContext.local(size, run, **degrees)
    assert all(result.images is None for result in results[1:])
    for picture, wanted in zip(results[0].images, expected.images, strict=True):
        difference = np.asarray(picture).astype(int) - np.asarray(wanted)
        assert np.abs(difference).max() <= 1  # a value between two steps of colour may fall to either


def test_a_device_backend_is_refused(directory, monkeypatch):
    config = ParallelConfig.for_plan(ulysses_degree=2, vae_degree=2)
    object.__setattr__(config, "backend", "nccl")
    with pytest.raises(ValueError, match="vae_degree is 2, but pictures are decoded on the host"):
        read_settings(directory).check_parallel(config)
