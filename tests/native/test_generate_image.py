"""``edgedit generate --image`` in this process, with the embedded model."""

import json

import numpy as np
import pytest
from PIL import Image

from edgedit import cli


def generate(*words):
    return cli.main(["generate", *map(str, words), "--threads", "1", "--quiet"])


def pixels(path):
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def red(drawn):
    """How many pixels are clearly red."""
    return (drawn[..., 0] > drawn[..., 2] + 60).sum()


def blue(drawn):
    """How many pixels are blue and darker than a window."""
    return ((drawn[..., 2] > drawn[..., 0] + 40) & (drawn[..., 0] < 120)).sum()


@pytest.fixture(scope="module")
def red_car(tmp_path_factory):
    path = tmp_path_factory.mktemp("car") / "car.png"
    assert generate("-p", "a red car", "--steps", "12", "-s", "3", "-o", path) == 0
    return path


@pytest.fixture(scope="module")
def right_half(red_car):
    path = red_car.with_name("mask.png")
    mask = np.zeros((64, 64), np.uint8)
    mask[:, 32:] = 255
    Image.fromarray(mask).save(path)
    return path


def test_the_red_car_turns_blue_and_stays_where_it_is(red_car, tmp_path):
    before = pixels(red_car)
    words = ["-p", "a blue car", "-s", "5", "--steps", "12", "--image", red_car, "--strength", "0.6"]
    assert generate(*words, "-o", tmp_path / "blue.png") == 0
    after = pixels(tmp_path / "blue.png")
    assert (red(before) > 900, blue(before) < 150) == (True, True)
    assert (red(after) < 50, blue(after) > 900) == (True, True)
    there = [(drawn.min(axis=2) < 200) for drawn in (before, after)]  # not the white around it
    assert (there[0] & there[1]).sum() > 0.9 * (there[0] | there[1]).sum()


def test_only_the_white_half_of_the_mask_turns_blue(red_car, right_half, tmp_path):
    words = ["-p", "a blue car", "-s", "5", "--steps", "12", "--image", red_car, "--mask", right_half]
    assert generate(*words, "--strength", "0.8", "-o", tmp_path / "half.png") == 0
    before, after = pixels(red_car), pixels(tmp_path / "half.png")
    left, right = after[:, :30], after[:, 34:]
    assert (red(left) > 400, blue(left) < 20) == (True, True)
    assert (red(right) < 40, blue(right) > 250) == (True, True)
    # what stays has gone through the autoencoder
    assert np.abs(before - after)[:, :28].mean() < 8


def test_the_picture_carries_what_it_began_with(red_car, right_half, tmp_path):
    words = ["-p", "cat", "--steps", "4", "--image", red_car, "--mask", right_half, "-s", "1"]
    assert generate(*words, "-o", tmp_path / "a.png") == 0
    with Image.open(tmp_path / "a.png") as picture:
        parameters = json.loads(picture.text["edgedit"])
    expected = {"image": str(red_car), "mask": str(right_half), "image_as": "start", "strength": 0.6}
    assert {name: parameters[name] for name in expected} == expected
    assert parameters["image_size"] == "64x64"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--image", "absent.png"], "picture 'absent.png': there is no such file"),
        (["--mask", "absent.png"], "mask is given without image"),
        (["--strength", "0.5"], "strength is given without image"),
        (["--image", "CAR", "--strength", "1.2"], "strength is 1.2; it must be above 0 and at most 1"),
        (["--image", "CAR", "--mask", "SMALL"], "the mask has 8 x 8 px and the image 64 x 64"),
        (["--image", "TEXT"], "cannot be read"),
    ],
)
def test_bad_pictures_are_refused_before_weights_are_read(
    capsys, monkeypatch, red_car, tmp_path, words, message
):
    monkeypatch.setattr("edgedit.pipelines.pipeline.Pipeline.from_pretrained", lambda *_, **__: 1 / 0)
    Image.new("L", (8, 8)).save(tmp_path / "small.png")
    (tmp_path / "text.png").write_text("no picture")
    files = {"CAR": red_car, "SMALL": tmp_path / "small.png", "TEXT": tmp_path / "text.png"}
    assert generate("-p", "cat", *(files.get(word, word) for word in words), "-o", tmp_path / "a.png") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


def test_a_stretched_picture_is_said(capsys, red_car, tmp_path):
    Image.open(red_car).resize((64, 32)).save(tmp_path / "wide.png")
    words = ["-p", "cat", "--steps", "2", "--image", tmp_path / "wide.png", "-o", tmp_path / "a.png"]
    assert cli.main(["generate", *map(str, words), "--threads", "1"]) == 0
    said = capsys.readouterr().err
    assert said.count("the image of 64 x 32 px is stretched to 64 x 64") == 1
