"""``edgedit generate`` in this process."""

import json

import numpy as np
import pytest
from PIL import Image
from tiny_sd3 import write_sd3_pipeline

from edgedit import cli

KEYS = [
    "seed", "world_size", "axes", "backend", "comm", "ops", "kernels", "vae_degree",
    "text_encoder_degree", "text_encoders", "weight_residency", "dtype", "wire_dtype", "quantised_compute",
    "schedule_digest", "bytes_sent", "timings", "outputs",
]  # fmt: skip
FAST = ["--steps", "2", "--threads", "1"]


def generate(capsys, *words):
    assert cli.main(["generate", *map(str, words)]) == 0
    return capsys.readouterr()


def pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def test_a_red_apple_is_red_on_white_with_a_green_leaf(capsys, tmp_path):
    generate(capsys, "-p", "a red apple", "--steps", "4", "-s", "0", "-o", tmp_path / "a.png")
    drawn = pixels(tmp_path / "a.png")
    assert drawn.shape == (64, 64, 3)
    red, green, blue = np.moveaxis(drawn, 2, 0)
    assert drawn[[0, 0, -1, -1], [0, -1, 0, -1]].min() > 235
    middle = (slice(24, 52), slice(16, 48))
    assert (red[middle] > 1.5 * np.maximum(green, blue)[middle]).mean() > 0.9
    top = slice(0, 20)
    assert (green[top] > 1.2 * np.maximum(red, blue)[top]).sum() > 15


def test_seed_and_path_are_printed_and_nothing_else_on_stdout(capsys, tmp_path):
    said = generate(capsys, "-p", "a cat", *FAST, "-s", "7", "-o", tmp_path / "a.png")
    assert said.out == f"seed 7\n{tmp_path / 'a.png'}\n"


def test_quiet_says_nothing(capsys, tmp_path):
    said = generate(capsys, "-p", "submarine", *FAST, "-o", tmp_path / "a.png", "--quiet")
    assert (said.out, said.err) == ("", "")


def test_the_json_object_has_the_documented_keys(capsys, tmp_path):
    said = generate(capsys, "-p", "a cat", *FAST, "-s", "7", "-o", tmp_path / "a.png", "--json")
    report = json.loads(said.out)
    assert list(report) == KEYS
    assert list(report["axes"]) == ["tp", "ulysses", "ring", "kv_gather", "cfg", "dp"]
    assert report["outputs"] == [str(tmp_path / "a.png")]
    assert (report["seed"], report["world_size"], report["bytes_sent"]) == (7, 1, [0])
    assert (report["dtype"], report["wire_dtype"], report["comm"], report["ops"]) == (
        "f32", "f32", "graph-cut", "fused",
    )  # fmt: skip
    stages, parts = {"text_encoding_s", "denoising_s", "decoding_s"}, {"compute_s", "exchange_s", "wait_s"}
    assert set(report["timings"]) == stages | parts


def test_every_prompt_and_repeat_gets_a_file_with_its_parameters(capsys, tmp_path):
    words = [
        "-p",
        "a cat",
        "-p",
        "a dog",
        "--num-images",
        "2",
        "--negative-prompt",
        "red",
        "--true-cfg-scale",
        "2",
    ]
    generate(capsys, *words, *FAST, "-s", "7", "-o", tmp_path / "a.png", "--latents-out", tmp_path / "l.npy")
    assert np.load(tmp_path / "l.npy").shape == (4, 16, 8, 8)
    for index, prompt in enumerate(["a cat", "a cat", "a dog", "a dog"]):
        with Image.open(tmp_path / f"a-{index}.png") as picture:
            stored = json.loads(picture.text["edgedit"])
            assert picture.text["parameters"].startswith(
                f"{prompt}\nNegative prompt: red\nSteps: 2, Seed: 7, "
            )
        assert (stored["prompt"], stored["negative_prompt"], stored["seed"]) == (prompt, "red", 7)
        assert stored["picture"] == f"{index + 1} of 4"
    assert len(list(tmp_path.iterdir())) == 5


def test_stored_parameters_draw_the_picture_again(capsys, tmp_path):
    generate(capsys, "-p", "a cat", "--negative-prompt", "dog", "--true-cfg-scale", "2.5", *FAST,
             "-o", tmp_path / "a.png")  # fmt: skip
    with Image.open(tmp_path / "a.png") as picture:
        stored = json.loads(picture.text["edgedit"])
    width, height = stored["size"].split("x")
    flags = {
        "--prompt": stored["prompt"], "--negative-prompt": stored["negative_prompt"], "--seed": stored["seed"],
        "--steps": stored["steps"], "--true-cfg-scale": stored["true_cfg_scale"], "--model": stored["model"],
        "--guidance-scale": stored["guidance_scale"], "--width": width, "--height": height,
        "--max-sequence-length": stored["max_sequence_length"], "--dtype": stored["dtype"],
    }  # fmt: skip
    words = [word for pair in flags.items() for word in pair]
    generate(capsys, *words, "--threads", "1", "-o", tmp_path / "b.png")
    np.testing.assert_array_equal(pixels(tmp_path / "a.png"), pixels(tmp_path / "b.png"))


def test_stable_diffusion_3_is_drawn_with_its_own_defaults_and_again_from_what_is_stored(capsys, tmp_path):
    model = write_sd3_pipeline(tmp_path / "sd3", with_t5=False)
    words = ["-p", "a cat", "--model", model, "--steps", "4", "--threads", "1", "--skip-guidance-layers", "1", "2",
             "--skip-layer-guidance-stop", "0.6"]  # fmt: skip
    generate(capsys, *words, "-o", tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        stored = json.loads(picture.text["edgedit"])
    assert (stored["guidance_scale"], stored["negative_prompt"], stored["size"]) == (7.0, "", "32x32")
    flags = [
        word
        for name in (
            "guidance_scale",
            "true_cfg_scale",
            "skip_layer_guidance_scale",
            "seed",
            "model",
            "steps",
        )
        for word in (f"--{name.replace('_', '-')}", stored[name])
    ]
    again = ["-p", stored["prompt"], "--skip-guidance-layers", *stored["skip_guidance_layers"].split(),
             "--skip-layer-guidance-stop", stored["skip_layer_guidance_stop"]]  # fmt: skip
    generate(capsys, *flags, *again, "--threads", "1", "-o", tmp_path / "b.png")
    np.testing.assert_array_equal(pixels(tmp_path / "a.png"), pixels(tmp_path / "b.png"))
    said = generate(
        capsys, *words[:8], "--negative-prompt", "dog", "--guidance-scale", "1", "-o", tmp_path / "c.png"
    )
    assert "--negative-prompt has no effect unless --guidance-scale is above 1" in said.err


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["-p", "submarine"], "was taught no word of 'submarine'"),
        (["-p", "a CAT", "--true-cfg-scale", "3"], "no effect without --negative-prompt"),
        (["-p", "a CAT", "--negative-prompt", "dog"], "no effect unless --true-cfg-scale is above 1"),
        (["-p", "a CAT", "--sp", "1"], "--sp 1: one rank holds all tokens"),
        (["-p", "cat " * 30], "is cut to 16"),
    ],
)
def test_what_the_user_may_not_expect_is_said(capsys, tmp_path, words, note):
    said = generate(capsys, *words, *FAST, "-o", tmp_path / "a.png")
    assert note in said.err
    assert "edgedit: " in said.err


def test_a_plain_request_needs_no_notes(capsys, tmp_path):
    assert "edgedit: " not in generate(capsys, "-p", "a cat", *FAST, "-o", tmp_path / "a.png").err


@pytest.mark.parametrize(("dtype", "limit"), [("f16", 2.0), ("bf16", 8.0), ("q8_0", 16.0)])
def test_smaller_weight_types_draw_nearly_the_same(capsys, tmp_path, dtype, limit):
    for name, chosen in (("a", "f32"), ("b", dtype)):
        generate(capsys, "-p", "a cat", *FAST, "-s", "1", "--dtype", chosen, "-o", tmp_path / f"{name}.png")
    difference = np.abs(pixels(tmp_path / "a.png") - pixels(tmp_path / "b.png")).mean()
    assert difference < limit


def test_a_failing_draw_leaves_no_file(capsys, tmp_path, monkeypatch):
    from edgedit.models.autoencoder_kl import AutoencoderKL

    monkeypatch.setattr(AutoencoderKL, "decode", lambda *_: np.ones((1, 3, 64, 64), np.float32))
    assert cli.main(["generate", "-p", "a cat", *FAST, "-o", str(tmp_path / "a.png")]) == cli.FAILURE
    assert "255 everywhere" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
