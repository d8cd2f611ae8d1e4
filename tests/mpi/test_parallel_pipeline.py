"""Replicas, text sent by the first rank, and the autoencoder over ranks, all in one command under mpiexec."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from launch import check_ok, mpirun
from PIL import Image

from edgedit import cli

PROMPTS = ["a red apple", "a blue car", "a green hat"]
REQUEST = [
    "--steps",
    "3",
    "--seed",
    "5",
    "--threads",
    "1",
    "--width",
    "112",
    "--height",
    "80",
    "--vae-tiling",
    "48",
]


def files(folder: Path) -> list[str]:
    return ["-o", str(folder / "out.png"), "--latents-out", str(folder / "out.npy"), "--json"]


def test_a_file_of_prompts_over_replicas_draws_what_one_rank_does(tmp_path: Path, capsys) -> None:
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    command = ["generate", "--prompts-file", str(tmp_path / "prompts.txt"), *REQUEST]
    (tmp_path / "alone").mkdir()
    assert cli.main([*command, *files(tmp_path / "alone")]) == 0
    alone = json.loads(capsys.readouterr().out.splitlines()[-1])
    layout = ["--dp", "2", "--ulysses", "2", "--vae-ranks", "3", "--text-encoders", "first", "--batch-size", "1"]
    done = mpirun(4, "edgedit", *command, *layout, *files(tmp_path))
    report = json.loads(check_ok(done))
    # two rounds of the first replica, one of the second
    assert report["bytes_sent"][0] == 2 * report["bytes_sent"][2] > 0
    latents, expected = (np.load(folder / "out.npy") for folder in (tmp_path, tmp_path / "alone"))
    np.testing.assert_allclose(latents, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert [Path(path).name for path in report["outputs"]] == ["out-0.png", "out-1.png", "out-2.png"]
    for drawn, wanted in zip(report["outputs"], alone["outputs"], strict=True):
        with Image.open(drawn) as picture, Image.open(wanted) as other:
            assert (
                json.loads(picture.text["edgedit"])["prompt"] == json.loads(other.text["edgedit"])["prompt"]
            )
            difference = np.abs(np.asarray(picture).astype(int) - np.asarray(other))
        assert difference.max() <= 1  # a value between two steps of colour may fall to either
