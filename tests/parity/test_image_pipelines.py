"""Pipelines that begin with a picture against diffusers: same random weights, same seed, same pictures."""

import numpy as np
import pytest
from picture_checks import assert_same, run_edgedit
from PIL import Image
from tiny import EMBEDDED, write_flux_pipeline
from tiny_images import mask, picture, write_fill_pipeline, write_kontext_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit.models.patches import unpatchify
from edgedit.pipelines.image_inputs import REFERENCE_SIZES

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

PROMPTS = ["a red apple", "two small cats on a white background"]
SIZE = {"height": 32, "width": 20}


def run_diffusers(kind, directory, seed, **call):
    """Latents after each step [steps, B, C, h, w] and the pictures [B, H, W, 3]."""
    pipeline = getattr(diffusers, kind).from_pretrained(directory, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    negative = call.get("negative_prompt")
    if isinstance(negative, str) and isinstance(call["prompt"], list):
        call["negative_prompt"] = [negative] * len(call["prompt"])
    rows, columns = (call[side] // pipeline.vae_scale_factor for side in ("height", "width"))
    steps = []

    def keep(_, step, timestep, tensors):
        latents = tensors["latents"].numpy().copy()
        steps.append(latents if latents.ndim == 4 else unpatchify(latents, rows, columns))
        return {}

    pictures = pipeline(
        generator=torch.Generator("cpu").manual_seed(seed),
        callback_on_step_end=keep,
        output_type="pil",
        **call,
    ).images
    return np.stack(steps), np.stack([np.asarray(drawn) for drawn in pictures])


def assert_draws_what_diffusers_draws(kind, directory, call, ours=None, theirs=None):
    assert_same(
        run_edgedit(directory, 7, **call, **(ours or {})),
        run_diffusers(kind, directory, 7, **call, **(theirs or {})),
    )


FLUX_START = {
    "stretched, shifted, guided": (
        {"guidance": True, "heads": 3, "scheduler": {"use_dynamic_shifting": True}},
        {"prompt": PROMPTS[0], "image": picture(50, 41), "strength": 0.6, "num_inference_steps": 6,
         "guidance_scale": 3.0},
    ),
    "a batch, true guidance, weak": (
        {},
        {"prompt": PROMPTS, "negative_prompt": "ugly", "true_cfg_scale": 2.5, "image": picture(20, 32),
         "strength": 0.3, "num_inference_steps": 5, "num_images_per_prompt": 2},
    ),
    "all steps, a quantising convolution": (
        {"vae": {"use_quant_conv": True, "use_post_quant_conv": True}},
        {"prompt": PROMPTS[1], "image": picture(20, 32, 1), "strength": 1.0, "num_inference_steps": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FLUX_START)
@pytest.mark.filterwarnings("ignore")
def test_flux_from_a_picture(name, tmp_path):
    model, call = FLUX_START[name]
    directory = write_flux_pipeline(tmp_path / "model", seed=len(name), **model)
    call = {"max_sequence_length": 16, "guidance_scale": 3.5, **SIZE, **call}
    assert_draws_what_diffusers_draws("FluxImg2ImgPipeline", directory, call)


@pytest.mark.parametrize("strength", [0.7, 1.0])
@pytest.mark.filterwarnings("ignore")
def test_flux_inside_of_a_mask(strength, tmp_path):
    directory = write_flux_pipeline(tmp_path / "model", guidance=True)
    call = {
        "prompt": PROMPTS, "image": picture(50, 40), "mask_image": mask(50, 40), "strength": strength,
        "num_inference_steps": 4, "max_sequence_length": 16, "guidance_scale": 3.5, **SIZE,
    }  # fmt: skip
    assert_draws_what_diffusers_draws("FluxInpaintPipeline", directory, call)


@pytest.mark.parametrize(("size", "batch"), [((24, 16), 1), ((31, 45), 2)])
@pytest.mark.filterwarnings("ignore")
def test_kontext_reads_a_picture_beside_what_it_draws(size, batch, tmp_path):
    directory = write_kontext_pipeline(
        tmp_path / "model", guidance=True, scheduler={"use_dynamic_shifting": True}
    )
    call = {
        "prompt": PROMPTS[:batch], "negative_prompt": "ugly", "true_cfg_scale": 2.0, "image": picture(*size),
        "num_inference_steps": 3, "max_sequence_length": 16, "guidance_scale": 2.5, **SIZE,
    }  # fmt: skip
    # diffusers draws `max_area` pixels whatever the size
    theirs = {"max_area": SIZE["height"] * SIZE["width"], "_auto_resize": False}
    assert_draws_what_diffusers_draws("FluxKontextPipeline", directory, call, {"resize_image": False}, theirs)


@pytest.mark.filterwarnings("ignore")
def test_kontext_draws_without_a_picture_too(tmp_path):
    directory = write_kontext_pipeline(tmp_path / "model", guidance=True)
    call = {
        "prompt": PROMPTS[0],
        "num_inference_steps": 2,
        "max_sequence_length": 16,
        "guidance_scale": 2.5,
        **SIZE,
    }
    theirs = {"max_area": SIZE["height"] * SIZE["width"]}
    assert_draws_what_diffusers_draws("FluxKontextPipeline", directory, call, theirs=theirs)


def test_the_sizes_of_references_are_those_of_diffusers():
    from diffusers.pipelines.flux import pipeline_flux_kontext

    assert list(REFERENCE_SIZES) == pipeline_flux_kontext.PREFERRED_KONTEXT_RESOLUTIONS


@pytest.mark.parametrize(("strength", "batch"), [(1.0, 1), (0.55, 2)])
@pytest.mark.filterwarnings("ignore")
def test_fill_reads_what_the_mask_leaves(strength, batch, tmp_path):
    directory = write_fill_pipeline(tmp_path / "model", guidance=True, heads=3)
    call = {
        "prompt": PROMPTS[:batch], "image": picture(50, 40), "mask_image": mask(50, 40), "strength": strength,
        "num_inference_steps": 4, "max_sequence_length": 16, **SIZE,
    }  # fmt: skip
    assert_draws_what_diffusers_draws("FluxFillPipeline", directory, call)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_stable_diffusion_3_from_a_picture(dynamic, tmp_path):
    directory = write_sd3_pipeline(
        tmp_path / "model", qk_norm="rms_norm", dual=(0,), scheduler={"use_dynamic_shifting": dynamic}
    )
    call = {
        "prompt": PROMPTS, "negative_prompt": ["ugly", ""], "image": picture(50, 40), "strength": 0.6,
        "num_inference_steps": 6, "guidance_scale": 4.0, "height": 20, "width": 28,
    }  # fmt: skip
    assert_draws_what_diffusers_draws("StableDiffusion3Img2ImgPipeline", directory, call)


@pytest.mark.filterwarnings("ignore")
def test_stable_diffusion_3_inside_of_a_mask(tmp_path):
    """diffusers' pipeline takes 16 latent channels and forgets to undo the autoencoder's shift."""
    directory = write_sd3_pipeline(tmp_path / "model", vae={"latent_channels": 16, "shift_factor": 0.0})
    call = {
        "prompt": PROMPTS[0], "image": picture(50, 40), "mask_image": mask(50, 40), "strength": 0.8,
        "num_inference_steps": 4, "guidance_scale": 4.0, "height": 20, "width": 28,
    }  # fmt: skip
    assert_draws_what_diffusers_draws("StableDiffusion3InpaintPipeline", directory, call)


@pytest.mark.filterwarnings("ignore")
def test_the_embedded_model_redraws_what_diffusers_redraws(tmp_path):
    """The picture and its mask are files here; diffusers gets what is in them."""
    drawn = picture(64, 64, 3)
    drawn.save(tmp_path / "drawn.png")
    call = {"prompt": "cat", "strength": 0.6, "num_inference_steps": 6, "height": 64, "width": 64}
    call["max_sequence_length"] = 16
    ours = run_edgedit("embedded", 0, image=tmp_path / "drawn.png", **call)
    theirs = run_diffusers(
        "FluxImg2ImgPipeline",
        EMBEDDED,
        0,
        image=Image.open(tmp_path / "drawn.png"),
        guidance_scale=3.5,
        **call,
    )
    assert_same(ours, theirs)
