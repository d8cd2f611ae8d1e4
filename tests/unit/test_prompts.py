"""Requests: defaults, legal sizes, prompts and their negatives, and what ranks compare."""

import numpy as np
import pytest

from edgedit.pipelines.request import Limits, Request
from edgedit.pipelines.settings import read_settings
from edgedit.sampling.noise import randn

EMBEDDED = Limits(size=64, multiple=16, latent_channels=16, max_sequence_length=16)
FLUX_DEV = Limits(size=1024, multiple=16, latent_channels=16, max_sequence_length=512)


def request(prompt="a cat", negative=None, limits=EMBEDDED, **options):
    return Request.create(limits, prompt, negative, **options)


def test_the_embedded_model_sets_its_own_defaults():
    limits = read_settings("embedded").limits
    assert limits == EMBEDDED
    made = request()
    assert (made.height, made.width, made.max_sequence_length, made.num_inference_steps) == (64, 64, 16, 28)


@pytest.mark.parametrize(
    ("pixels", "nearest"),
    [
        (1000, "992 or 1008"),
        (520, "512 or 528"),
        (264, "256 or 272"),
        (1, "16"),
        (17, "16 or 32"),
        (0, "16"),
        (-40, "16"),
    ],
)
@pytest.mark.parametrize("side", ["height", "width"])
def test_a_size_that_the_vae_forbids_is_answered_with_the_nearest_legal_ones(side, pixels, nearest):
    with pytest.raises(ValueError, match=rf"{side} is {pixels} px.*multiple of 16.*nearest: {nearest}$"):
        request(limits=FLUX_DEV, **{side: pixels})


@pytest.mark.parametrize(("height", "width"), [(1328, 1328), (1008, 1008), (16, 16), (528, 272)])
def test_sizes_that_divide_by_nothing_nice_are_legal(height, width):
    made = request(limits=FLUX_DEV, height=height, width=width)
    assert FLUX_DEV.latent_shape(made.batch, made.height, made.width) == (1, 16, height // 8, width // 8)


def test_one_negative_prompt_serves_all_prompts():
    made = request(["a", "b", "c"], "ugly", true_cfg_scale=2.0)
    assert made.branches == (("ugly", "ugly", "ugly"), ("a", "b", "c"))


def test_the_unconditional_branch_stands_first():
    assert request("a", "b", true_cfg_scale=2.0).branches == (("b",), ("a",))


@pytest.mark.parametrize(("negative", "scale"), [(None, 5.0), ("ugly", 1.0), ("ugly", 0.0)])
def test_without_negative_prompt_or_scale_there_is_one_branch(negative, scale):
    assert request("a", negative, true_cfg_scale=scale).branches == (("a",),)


def test_an_empty_negative_prompt_is_a_negative_prompt():
    assert request("a", "", true_cfg_scale=2.0).branches == (("",), ("a",))


def test_a_batch_counts_prompts_times_pictures():
    assert request(["a", "b"], num_images_per_prompt=3).batch == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": []}, "prompt is an empty list"),
        ({"prompt": ["a", 3]}, "prompt holds 3"),
        (
            {"prompt": ["a", "b", "c"], "negative": ["x", "y"]},
            "2 negative prompts for 3 prompts; give 1 or 3",
        ),
        ({"negative": []}, "negative_prompt is an empty list"),
        ({"num_inference_steps": 0}, "num_inference_steps is 0"),
        ({"num_images_per_prompt": -1}, "num_images_per_prompt is -1"),
        ({"guidance_scale": float("nan")}, "guidance_scale is nan"),
        ({"true_cfg_scale": float("inf")}, "true_cfg_scale is inf"),
        ({"true_cfg_scale": -1.0}, "true_cfg_scale is -1.0"),
        ({"max_sequence_length": 0}, "max_sequence_length is 0; legal are 1 to 512"),
        ({"max_sequence_length": 513}, "max_sequence_length is 513; legal are 1 to 512"),
        ({"seed": 2**64}, "seed 18446744073709551616"),
        (
            {"latents": np.zeros((1, 16, 8, 9), np.float32)},
            r"\(1, 16, 8, 9\); this request needs \(1, 16, 8, 8\)",
        ),
    ],
)
def test_bad_requests_are_refused_with_their_values(options, message):
    with pytest.raises(ValueError, match=message):
        request(**options)


def test_every_field_that_ranks_compare_shows_a_difference():
    base = request(["a"], ["b"], true_cfg_scale=2.0, seed=1, latents=randn((1, 16, 8, 8), 0))
    variants = {
        "prompts": {"prompt": ["c"]},
        "negative_prompts": {"negative": ["c"]},
        "num_inference_steps": {"num_inference_steps": 5},
        "guidance_scale": {"guidance_scale": 5.5},
        "true_cfg_scale": {"true_cfg_scale": 3.0},
        "max_sequence_length": {"max_sequence_length": 7},
        "seed": {"seed": 2},
        "latents": {"latents": randn((1, 16, 8, 8), 1)},
        "height": {"height": 80, "latents": randn((1, 16, 10, 8), 0)},
        "width": {"width": 80, "latents": randn((1, 16, 8, 10), 0)},
        "num_images_per_prompt": {"num_images_per_prompt": 2, "latents": randn((2, 16, 8, 8), 0)},
    }
    same = {"prompt": ["a"], "negative": ["b"], "true_cfg_scale": 2.0, "seed": 1, "latents": base.latents}
    assert request(**same).lines() == base.lines()
    assert {line.split(" = ")[0] for line in base.lines()} == set(variants)
    for field, changed in variants.items():
        differing = set(request(**{**same, **changed}).lines()) - set(base.lines())
        assert any(line.startswith(f"{field} = ") for line in differing), field
