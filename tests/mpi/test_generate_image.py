"""``edgedit generate --image`` under mpiexec: ranks draw what one rank draws, and refuse as one rank refuses."""

import json

import numpy as np
import pytest
from launch import check_ok, mpirun
from tiny_images import mask, picture, write_fill_pipeline, write_kontext_pipeline

from edgedit import cli

SIZE = ["--height", "16", "--width", "20", "--max-sequence-length", "6", "--steps", "2"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_kontext_pipeline(tmp_path_factory.mktemp("model") / "kontext", heads=3, t5_length=6)


def test_a_reference_reaches_all_ranks(model, tmp_path, capsys):
    picture(18, 13).save(tmp_path / "given.png")
    flags = ["--model", str(model), *SIZE, "-s", "4", "--keep-image-size", "--true-cfg-scale", "2"]
    words = [*flags, "-p", "a cat", "--negative-prompt", "ugly", "--image", str(tmp_path / "given.png")]
    files = {name: ["-o", str(tmp_path / f"{name}.png"), "--latents-out", str(tmp_path / f"{name}.npy")]
             for name in ("one", "four")}  # fmt: skip
    assert cli.main(["generate", *words, *files["one"], "--threads", "1", "--quiet"]) == 0
    layout = ["--cfg", "2", "--ulysses", "2"]
    report = json.loads(check_ok(mpirun(4, "edgedit", "generate", *words, *files["four"], *layout, "--json")))
    one, four = (np.load(tmp_path / f"{name}.npy") for name in files)
    np.testing.assert_allclose(four, one, rtol=0, atol=1e-5 * np.abs(one).max())
    capsys.readouterr()
    planned = [word for word in flags if word not in ("-s", "4")]
    assert cli.main(["plan", *planned, *layout, "--image-size", "18x13", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes_sent"] == report["bytes_sent"]


def test_a_picture_that_is_not_there_is_refused_once(model, tmp_path):
    words = ["--model", str(model), "-p", "a cat", "--image", "absent.png", "-o", str(tmp_path / "a.png")]
    done = mpirun(2, "edgedit", "generate", *words, "--ulysses", "2")
    assert done.returncode == 2
    assert done.stderr.count("picture 'absent.png': there is no such file") == 1


def test_verify_compares_the_steps_that_run(tmp_path):
    model = write_fill_pipeline(tmp_path / "fill", heads=3, num_layers=1, num_single_layers=1)
    picture(20, 16).save(tmp_path / "image.png")
    mask(20, 16).save(tmp_path / "mask.png")
    words = ["--model", str(model), *SIZE[:-1], "3", "--ulysses", "2", "--json"]
    pictures = ["--image", str(tmp_path / "image.png"), "--mask", str(tmp_path / "mask.png")]
    done = mpirun(2, "edgedit", "verify", *words, *pictures, "--strength", "0.6", "--block-step", "2")
    report = json.loads(check_ok(done))
    assert report["passed"]
    assert len(report["steps"]) == 2
    refused = mpirun(2, "edgedit", "verify", *words, *pictures, "--strength", "0.6", "--block-step", "3")
    assert refused.returncode == 2
    assert "--block-step is 3; legal: 1 to 2" in refused.stderr
