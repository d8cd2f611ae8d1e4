"""``edgedit generate --image`` under mpiexec: ranks draw what one rank draws, and refuse as one rank refuses."""

import json

import numpy as np
import pytest
from launch import check_ok, mpirun
from tiny_images import picture, write_kontext_pipeline

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
