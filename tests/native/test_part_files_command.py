"""Files of parts on the command line: generate draws the same, plan and bench read a file's shapes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from single_files import TOLD_FLUX, all_in_one, original, read_component, write_gguf
from tiny import write_flux_pipeline

from edgedit import cli


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory, and files with its transformer in Q8_0, its VAE, and everything."""
    folder = tmp_path_factory.mktemp("files")
    directory = write_flux_pipeline(folder / "flux", seed=5, dtype="F16", **TOLD_FLUX)
    write_gguf(folder / "flux.gguf", original("flux", read_component(directory / "transformer")), "Q8_0")
    save_file(original("autoencoder_kl", read_component(directory / "vae")), folder / "ae.safetensors")
    save_file(all_in_one(directory), folder / "all.safetensors")
    return folder


def run(capsys, *words):
    assert cli.main(list(map(str, words))) == 0
    return capsys.readouterr()


FAST = ("-p", "a cat", "--steps", 1, "--width", 16, "--height", 16, "-s", 7)


def drawn(capsys, tmp_path, *words):
    outputs = ("-o", tmp_path / "a.png", "--latents-out", tmp_path / "a.npy")
    said = run(capsys, "generate", *FAST, *outputs, "--json", *words)
    return np.load(tmp_path / "a.npy"), json.loads(said.out)


def test_generate_takes_parts_and_says_their_type(capsys, tmp_path, files):
    expected, report = drawn(capsys, tmp_path, "--model", files / "flux")
    assert report["dtype"] == "f32"
    latents, _ = drawn(capsys, tmp_path, "--model", files / "all.safetensors", "--tokenizer-dir", files / "flux")
    np.testing.assert_array_equal(latents, expected)
    parts = ("--vae", files / "ae.safetensors", "--clip-l", files / "flux" / "text_encoder",
             "--t5", files / "flux" / "text_encoder_2", "--tokenizer-dir", files / "flux")  # fmt: skip
    latents, _ = drawn(capsys, tmp_path, "--transformer", files / "flux" / "transformer", *parts)
    np.testing.assert_array_equal(latents, expected)
    latents, report = drawn(capsys, tmp_path, "--transformer", files / "flux.gguf", *parts)
    assert report["dtype"] == "q8_0"
    assert 0 < np.abs(latents - expected).max() < 0.1 * np.abs(expected).max()
    with Image.open(tmp_path / "a.png") as picture:
        stored = json.loads(picture.text["edgedit"])
    assert (stored["transformer"], stored["dtype"]) == (str(files / "flux.gguf"), "auto")
    widened, report = drawn(capsys, tmp_path, "--model", files / "flux", "--transformer", files / "flux.gguf",
                            "--dtype", "f32")  # fmt: skip
    assert report["dtype"] == "f32"
    assert 0 < np.abs(widened - expected).max() < 0.1 * np.abs(expected).max()


def test_plan_and_bench_read_the_shapes_of_a_file(capsys, files):
    of_file, of_directory = (
        json.loads(run(capsys, "plan", "--model", model, "--width", 64, "--height", 64, "--json").out)
        for model in (files / "flux.gguf", files / "flux" / "transformer" / "config.json")
    )
    assert {**of_file, "model": "", "title": ""} == {**of_directory, "model": "", "title": ""}
    timed = json.loads(run(capsys, "bench", "--model", files / "flux.gguf", "--dtype", "q8_0", "--steps", 1, "--warmup",
                           0, "--width", 64, "--height", 64, "--max-sequence-length", 4, "--json").out)  # fmt: skip
    assert (timed["image_tokens"], timed["dtype"]) == (16, "q8_0")
