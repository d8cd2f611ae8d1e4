"""Sizes that divide by nothing nice through whole Stable Diffusion 3 pipelines, at the published scale of pixels."""

import numpy as np
import pytest
from tiny_sd3 import write_sd3_pipeline

from edgedit.config import ParallelConfig
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline

HEADS = 3
CALL = {"num_inference_steps": 1, "seed": 3, "max_sequence_length": 7}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """8 pixels per latent position and 16 per token, as published; otherwise as little as there can be."""
    return write_sd3_pipeline(
        tmp_path_factory.mktemp("model") / "sd3",
        heads=HEADS,
        head_dim=8,
        num_layers=2,
        dual=(0,),
        qk_norm="rms_norm",
        with_t5=False,
        transformer={"pos_embed_max_size": 96, "sample_size": 128},
        vae={"block_out_channels": [4, 4, 4, 4], "norm_num_groups": 2, "layers_per_block": 1},
    )


@pytest.mark.parametrize(
    ("size", "degrees"),
    [
        ((528, 272), {"ulysses_degree": HEADS}),
        ((528, 272), {"cfg_degree": 2, "ulysses_degree": 2}),
        ((16, 16), {"ulysses_degree": HEADS}),  # one token: all ranks but the first own none
        ((16, 16), {"cfg_degree": 2, "ulysses_degree": HEADS}),
        ((16, 1008), {"ulysses_degree": 2}),
        pytest.param((1008, 1008), {"ulysses_degree": 2}, marks=pytest.mark.slow),
        pytest.param((1328, 1328), {"ulysses_degree": HEADS}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_ranks_draw_what_one_rank_draws(directory, size, degrees):
    height, width = size
    guided = {"guidance_scale": 4.0 if "cfg_degree" in degrees else 1.0}

    def run(parallel):
        with Pipeline.from_pretrained(directory, threads=1, parallel=parallel) as pipeline:
            return pipeline("a cat", height=height, width=width, **CALL, **guided)

    expected = run(ParallelConfig())
    assert expected.images[0].size == (width, height)
    assert expected.latents.shape == (1, 4, height // 8, width // 8)
    results = ParallelContext.local(int(np.prod(list(degrees.values()))), run, **degrees)
    for result in results:
        np.testing.assert_allclose(
            result.latents, expected.latents, rtol=0, atol=1e-5 * np.abs(expected.latents).max()
        )
    drawn, alone = (np.asarray(result.images[0]).astype(int) for result in (results[0], expected))
    assert np.abs(drawn - alone).max() <= 1


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ({"height": 520, "width": 264}, "height is 520 px; it must be a multiple of 16, nearest: 512 or 528"),
        ({"height": 528, "width": 264}, "width is 264 px; it must be a multiple of 16, nearest: 256 or 272"),
        ({"height": 1552}, "height is 1552 px; this model draws at most 1536"),
        ({"height": 8}, "height is 8 px; it must be a multiple of 16, nearest: 16"),
    ],
)
def test_sizes_that_the_model_forbids_are_answered_with_the_nearest_legal_ones(directory, size, words):
    with (
        Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as pipeline,
        pytest.raises(ValueError, match=words),
    ):
        pipeline("a cat", **size, **CALL)
