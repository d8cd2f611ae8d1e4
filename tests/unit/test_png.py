"""Output files: names, checks before work, whole files only, and the parameters in a PNG."""

import json

import numpy as np
import pytest
from PIL import Image

from edgedit.commands import output
from edgedit.errors import EdgeditError
from edgedit.pipelines.images import to_pil, to_pixels

PARAMETERS = {"prompt": "a rød æble", "negative_prompt": "blur", "steps": 4, "seed": 2**40}


def test_pixels_are_rounded_and_clipped():
    decoded = np.float32([-1.5, -1.0, 0.0, 0.999, 1.0, 7.0]).reshape(1, 1, 1, 6).repeat(3, axis=1)
    assert to_pixels(decoded)[0, 0, :, 0].tolist() == [0, 0, 128, 255, 255, 255]


def test_channels_become_red_green_blue():
    decoded = np.float32([1.0, 0.0, -1.0]).reshape(1, 3, 1, 1) * np.ones((1, 3, 2, 5), np.float32)
    picture = to_pil(decoded)[0]
    assert picture.size == (5, 2)
    assert picture.getpixel((0, 0)) == (255, 128, 0)


def test_one_value_that_is_not_a_number_is_an_error():
    decoded = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    decoded[1, 2, 3, 4] = np.nan
    with pytest.raises(EdgeditError, match="not finite"):
        to_pixels(decoded)


@pytest.mark.parametrize("value", [0.3, 40.0, np.inf])
def test_a_picture_of_one_colour_is_an_error(value):
    decoded = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    decoded[1] = value
    with pytest.raises(EdgeditError, match=r"picture 1 is \d+ everywhere"):
        to_pixels(decoded)


def test_one_picture_keeps_its_name_and_several_are_numbered(tmp_path):
    assert output.picture_paths(tmp_path / "a.png", 1) == [tmp_path / "a.png"]
    assert output.picture_paths(tmp_path / "a.b.PNG", 2) == [tmp_path / "a.b-0.PNG", tmp_path / "a.b-1.PNG"]


@pytest.mark.parametrize("name", ["a.gif", "a", "a.npy"])
def test_unknown_formats_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"must end in \.png"):
        output.picture_paths(tmp_path / name, 1)


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no directory"):
        output.check_writable([tmp_path / "missing" / "a.png"])
    with pytest.raises(ValueError, match="it is a directory"):
        output.check_writable([tmp_path])
    output.check_writable([tmp_path / "a.png"])


def test_a_png_carries_its_parameters(tmp_path):
    path = tmp_path / "a.png"
    picture = Image.new("RGB", (2, 2), (1, 2, 3))
    output.write_files({path: output.picture_writer(picture, path, PARAMETERS)})
    with Image.open(path) as saved:
        assert json.loads(saved.text["edgedit"]) == PARAMETERS
        assert saved.text["parameters"] == f"a rød æble\nNegative prompt: blur\nSteps: 4, Seed: {2**40}"
        assert saved.getpixel((1, 1)) == (1, 2, 3)


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_other_formats_are_written_too(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    picture = Image.new("RGB", (8, 8), (200, 20, 20))
    output.write_files({path: output.picture_writer(picture, path, PARAMETERS)})
    with Image.open(path) as saved:
        assert saved.size == (8, 8)


def test_latents_are_saved_as_they_are(tmp_path):
    latents = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    output.write_files({tmp_path / "l.npy": output.array_writer(latents)})
    np.testing.assert_array_equal(np.load(tmp_path / "l.npy"), latents)


def test_a_failing_writer_leaves_neither_old_nor_partial_files_changed(tmp_path):
    first, second = tmp_path / "a.npy", tmp_path / "b.npy"
    first.write_bytes(b"old")

    def fail(path):
        path.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        output.write_files({first: output.array_writer(np.zeros(3)), second: fail})
    assert first.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]
