"""Whole Stable Diffusion 3 pipelines against diffusers: same random weights, same seed, same pictures."""

import numpy as np
import pytest
from picture_checks import assert_same, run_edgedit
from tiny_sd3 import write_sd3_pipeline

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

PROMPTS = ["a red apple", "two small cats on a white background", "a dog"]
MEDIUM_35 = {"heads": 3, "head_dim": 20, "num_layers": 4, "dual": (0, 1), "qk_norm": "rms_norm"}

CASES = {
    "three encoders": {
        "model": {},
        "call": {"prompt": PROMPTS[0], "height": 32, "width": 48, "num_inference_steps": 4},
    },
    "without T5, odd sizes, negative prompts, batch": {
        "model": {"with_t5": False, "heads": 5, "qk_norm": "rms_norm", "scheduler": {"shift": 1.7}},
        "call": {
            "prompt": PROMPTS, "negative_prompt": ["ugly", "a blurry picture of nothing at all", ""],
            "guidance_scale": 4.5, "height": 36, "width": 20, "num_inference_steps": 3,
        },
    },
    "dual attention and skipped layers": {
        "model": MEDIUM_35,
        "call": {
            "prompt": PROMPTS[1], "height": 28, "width": 36, "num_inference_steps": 6, "skip_guidance_layers": [1, 2],
            "skip_layer_guidance_stop": 0.6,
        },
    },
    "skipped layers with other numbers, two pictures a prompt": {
        "model": MEDIUM_35,
        "call": {
            "prompt": PROMPTS[:2], "num_images_per_prompt": 2, "height": 16, "width": 16, "num_inference_steps": 5,
            "skip_guidance_layers": [3], "skip_layer_guidance_scale": 1.3, "skip_layer_guidance_start": 0.3,
            "skip_layer_guidance_stop": 0.9, "guidance_scale": 3.0,
        },
    },
    "no guidance, as turbo models, short text": {
        "model": {"qk_norm": "rms_norm", "scheduler": {"use_dynamic_shifting": True}},
        "call": {
            "prompt": PROMPTS[1], "guidance_scale": 0.0, "height": 24, "width": 16, "num_inference_steps": 4,
            "max_sequence_length": 9,
        },
    },
}  # fmt: skip


def run_diffusers(directory, seed, negative_prompt=None, **call):
    """Latents after each step [steps, B, C, h, w] and the pictures [B, H, W, 3]."""
    has_t5 = (directory / "text_encoder_3").exists()
    absent = {} if has_t5 else {"text_encoder_3": None, "tokenizer_3": None}
    pipeline = diffusers.StableDiffusion3Pipeline.from_pretrained(
        directory, torch_dtype=torch.float32, **absent
    )
    pipeline.set_progress_bar_config(disable=True)
    if negative_prompt is None and isinstance(call["prompt"], list):
        negative_prompt = [""] * len(call["prompt"])
    steps = []

    def keep(_, step, timestep, tensors):
        steps.append(tensors["latents"].numpy().copy())
        return {}

    pictures = pipeline(
        negative_prompt=negative_prompt,
        generator=torch.Generator("cpu").manual_seed(seed),
        callback_on_step_end=keep,
        output_type="pil",
        **call,
    ).images
    return np.stack(steps), np.stack([np.asarray(picture) for picture in pictures])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_random_pipelines_draw_what_diffusers_draws(name, tmp_path):
    case = CASES[name]
    directory = write_sd3_pipeline(tmp_path / "model", seed=len(name), **case["model"])
    assert_same(run_edgedit(directory, 7, **case["call"]), run_diffusers(directory, 7, **case["call"]))
