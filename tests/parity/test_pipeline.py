"""Whole pipelines against diffusers: same random weights, same seed, same pictures."""

import numpy as np
import pytest
from picture_checks import assert_same, run_edgedit
from tiny import EMBEDDED, write_flux_pipeline

from edgedit.models.patches import unpatchify
from edgedit.sampling.noise import randn

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

PROMPTS = ["a red apple", "two small cats on a white background"]
NEGATIVE = "ugly"

CASES = {
    "schnell": {
        "model": {"heads": 4},
        "call": {"prompt": PROMPTS[0], "height": 32, "width": 48, "num_inference_steps": 4},
    },
    "dev, odd heads and sizes, batch, guidance": {
        "model": {
            "heads": 3, "head_dim": 20, "axes": (4, 8, 8), "guidance": True, "num_single_layers": 3,
            "scheduler": {"use_dynamic_shifting": True, "shift": 3.0},
        },
        "call": {
            "prompt": PROMPTS, "negative_prompt": [NEGATIVE, "a blurry picture of nothing at all"],
            "true_cfg_scale": 2.5, "guidance_scale": 5.5, "height": 36, "width": 20, "num_inference_steps": 3,
        },
    },
    "static shift, two pictures a prompt, short text": {
        "model": {
            "heads": 5, "num_layers": 1, "t5_length": 40, "scheduler": {"shift": 5.5}, "dtype": "BF16", "shards": 2,
            "text_encoder_2": {"feed_forward_proj": "relu"},
        },
        "call": {
            "prompt": PROMPTS, "num_images_per_prompt": 2, "height": 16, "width": 28, "num_inference_steps": 3,
            "max_sequence_length": 5,
        },
    },
}  # fmt: skip


def run_diffusers(directory, seed, negative_prompt=None, **call):
    """Latents after each step [steps, B, C, h, w] and the pictures [B, H, W, 3]."""
    pipeline = diffusers.FluxPipeline.from_pretrained(directory, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    if isinstance(negative_prompt, str) and isinstance(call["prompt"], list):
        negative_prompt = [negative_prompt] * len(call["prompt"])
    scale = pipeline.vae_scale_factor
    steps = []

    def keep(_, step, timestep, tensors):
        steps.append(unpatchify(tensors["latents"].numpy(), call["height"] // scale, call["width"] // scale))
        return {}

    generator = torch.Generator("cpu").manual_seed(seed)
    pictures = pipeline(
        negative_prompt=negative_prompt,
        generator=generator,
        callback_on_step_end=keep,
        output_type="pil",
        **call,
    ).images
    return np.stack(steps), np.stack([np.asarray(picture) for picture in pictures])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_random_pipelines_draw_what_diffusers_draws(name, tmp_path):
    case = CASES[name]
    directory = write_flux_pipeline(tmp_path / "model", seed=len(name), **case["model"])
    call = {"max_sequence_length": case["model"].get("t5_length", 16), **case["call"]}
    assert_same(run_edgedit(directory, 7, **call), run_diffusers(directory, 7, **call))


@pytest.mark.parametrize(
    "call",
    [
        {"prompt": "a red apple", "num_inference_steps": 8},
        {"prompt": ["cat", "dog"], "negative_prompt": "red", "true_cfg_scale": 3.0, "num_inference_steps": 4},
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_the_embedded_model_draws_what_diffusers_draws(call):
    call = {**call, "height": 64, "width": 64, "max_sequence_length": 16}
    assert_same(run_edgedit("embedded", 0, **call), run_diffusers(EMBEDDED, 0, **call))


@pytest.mark.parametrize("shape", [(1, 16, 8, 8), (4, 16, 10, 6), (1, 4, 2, 2)])
def test_starting_latents_are_those_of_diffusers(shape):
    generator = torch.Generator("cpu").manual_seed(11)
    theirs = diffusers.utils.torch_utils.randn_tensor(shape, generator=generator, dtype=torch.float32)
    np.testing.assert_allclose(randn(shape, 11), theirs.numpy(), rtol=0, atol=1e-6)
