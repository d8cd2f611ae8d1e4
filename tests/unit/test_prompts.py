"""Requests: defaults, legal sizes, prompts and their negatives, and what ranks compare."""

from dataclasses import replace

import numpy as np
import pytest

from edgedit.pipelines.image_inputs import REFERENCE, START, ImageInput
from edgedit.pipelines.request import Limits, Request, SkipLayerGuidance
from edgedit.pipelines.settings import read_settings
from edgedit.sampling.noise import randn

EMBEDDED = Limits(
    size=64, multiple=16, latent_channels=16, max_sequence_length=16, image_uses=(START, REFERENCE)
)
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
        ({"prompt": "a", "negative": ["x", "y"]}, "2 negative prompts for 1 prompts; give 1$"),
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
        "batch_size": {"batch_size": 2},
        "guidance_rescale": {"guidance_rescale": 0.5},
        "vae_tile": {"vae_tile": 256},
        "skip_layer_guidance": {
            "skip_guidance_layers": [1],
            "limits": replace(EMBEDDED, num_skippable_layers=2),
        },
    }
    same = {"prompt": ["a"], "negative": ["b"], "true_cfg_scale": 2.0, "seed": 1, "latents": base.latents}
    assert request(**same).lines() == base.lines()
    assert {line.split(" = ")[0] for line in base.lines()} == {*variants, "image"}
    pictures = [replace(base, image=ImageInput(np.full((64, 64, 3), grey, np.uint8))) for grey in (7, 8)]
    assert len({tuple(made.lines()) for made in (base, *pictures)}) == 3
    for field, changed in variants.items():
        differing = set(request(**{**same, **changed}).lines()) - set(base.lines())
        assert any(line.startswith(f"{field} = ") for line in differing), field


# guidance between branches, as Stable Diffusion 3 has it

SD3 = Limits(
    size=1024,
    multiple=16,
    latent_channels=16,
    max_sequence_length=256,
    largest=1536,
    guidance_scale=7.0,
    is_guided_by_branches=True,
    num_skippable_layers=24,
)


def test_guidance_between_branches_is_on_unless_it_is_turned_off():
    made = request("a", limits=SD3)
    assert (made.guidance_scale, made.true_cfg_scale, made.branches) == (7.0, 7.0, (("",), ("a",)))
    assert request("a", "b", limits=SD3, guidance_scale=2.0).branches == (("b",), ("a",))
    for scale in (0.0, 1.0):
        assert request("a", "b", limits=SD3, guidance_scale=scale).branches == (("a",),)
    assert request("a", limits=SD3, guidance_scale=3.0, true_cfg_scale=3.0).true_cfg_scale == 3.0


def test_skipped_layers_are_a_third_branch():
    made = request(["a", "b"], limits=SD3, skip_guidance_layers=[9, 7, 9])
    assert made.branches == (("", ""), ("a", "b"), ("a", "b"))
    assert made.skip_layer_guidance == SkipLayerGuidance((7, 9), 2.8, 0.01, 0.2)


@pytest.mark.parametrize(
    ("num_steps", "start", "stop", "steps"),
    [
        (28, 0.01, 0.2, range(1, 6)),
        (10, 0.0, 0.5, range(1, 5)),
        (10, 0.0, 1.0, range(1, 10)),
        (4, 0.5, 0.5, ()),
    ],
)
def test_layers_are_skipped_strictly_between_two_fractions_of_the_steps(num_steps, start, stop, steps):
    guidance = SkipLayerGuidance((1,), start=start, stop=stop)
    assert [step for step in range(num_steps) if guidance.is_active(step, num_steps)] == list(steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"true_cfg_scale": 2.0}, "true_cfg_scale is 2.0 and guidance_scale 7.0"),
        ({"skip_guidance_layers": [7, 24]}, r"skip_guidance_layers is \[7, 24\]; legal layers: 0 to 23"),
        ({"skip_guidance_layers": [-1]}, r"\[-1\]; legal layers: 0 to 23"),
        ({"skip_guidance_layers": []}, r"\[\]; legal layers: 0 to 23"),
        ({"skip_guidance_layers": [1], "limits": EMBEDDED}, "legal layers: none here"),
        ({"skip_guidance_layers": [1], "guidance_scale": 1.0}, "guidance_scale is 1.0; it must be above 1"),
        (
            {"skip_guidance_layers": [1], "skip_layer_guidance_scale": -1.0},
            "skip_layer_guidance_scale is -1.0",
        ),
        (
            {"skip_guidance_layers": [1], "skip_layer_guidance_stop": float("nan")},
            "skip_layer_guidance_stop is nan",
        ),
        ({"height": 1552}, "height is 1552 px; this model draws at most 1536"),
    ],
)
def test_bad_requests_for_guidance_between_branches_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        request(**{"limits": SD3, **options})
