"""The picture of a request: which options are legal, how it is read and fitted, what is compared between ranks."""

import numpy as np
import pytest
from PIL import Image

from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.image_inputs import (
    FILL,
    REFERENCE,
    REFERENCE_SIZES,
    START,
    check_options,
    image_input,
    reference_size,
)
from edgedit.pipelines.pictures import from_first_rank, read


def picture(width=20, height=12, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def mask_of(white, width=20, height=12):
    """White in the columns `white`, black elsewhere."""
    pixels = np.zeros((height, width), np.uint8)
    pixels[:, white] = 255
    return Image.fromarray(pixels)


# options

BOTH = (START, REFERENCE)


@pytest.mark.parametrize(
    ("uses", "options", "message"),
    [
        (BOTH, {"has_mask": True}, "mask is given without image"),
        (BOTH, {"strength": 0.5}, "strength is given without image"),
        (BOTH, {"image_as": REFERENCE}, "image_as is given without image"),
        (BOTH, {"resize": False}, "keep-image-size.* is given without image"),
        (BOTH, {"has_image": True, "resize": False}, "keep-image-size.* is for references"),
        ((FILL,), {"has_image": True, "has_mask": True, "resize": False}, "keep-image-size.* is for references"),
        ((FILL,), {}, "this model fills a part of a picture: it needs image and mask"),
        ((FILL,), {"has_image": True}, "image is given, mask is missing"),
        ((FILL,), {"has_image": True, "image_as": START}, "image_as is 'start'; legal for this model: fill"),
        (
            (START,),
            {"has_image": True, "image_as": REFERENCE},
            "image_as is 'reference'; legal for .*: start",
        ),
        ((REFERENCE, START), {"has_image": True, "has_mask": True}, "as a reference, which takes no mask"),
        (BOTH, {"has_image": True, "strength": 0.5, "image_as": REFERENCE}, "which takes no strength"),
        (BOTH, {"has_image": True, "strength": 0.0}, "strength is 0.0; it must be above 0 and at most 1"),
        (BOTH, {"has_image": True, "strength": 1.01}, "strength is 1.01"),
        (BOTH, {"has_image": True, "strength": -0.2}, "strength is -0.2"),
        (BOTH, {"has_image": True, "strength": float("nan")}, "strength is nan"),
        (BOTH, {"has_image": True, "strength": 1e-20}, "strength 1e-20 leaves none of 4"),
    ],
)
def test_options_that_a_model_cannot_follow_are_refused(uses, options, message):
    with pytest.raises(ValueError, match=message):
        check_options(uses, 4, **{"has_image": False, **options})


@pytest.mark.parametrize(
    ("uses", "options", "use"),
    [
        (BOTH, {"has_image": False}, START),
        (BOTH, {"has_image": True, "strength": 1.0}, START),
        (BOTH, {"has_image": True, "has_mask": True, "strength": 0.01}, START),
        (BOTH, {"has_image": True, "image_as": REFERENCE}, REFERENCE),
        (BOTH, {"has_image": True, "image_as": REFERENCE, "resize": False}, REFERENCE),
        ((FILL,), {"has_image": True, "has_mask": True}, FILL),
        ((REFERENCE, START), {"has_image": True}, REFERENCE),
        ((REFERENCE, START), {"has_image": True, "strength": 0.3, "image_as": START}, START),
    ],
)
def test_a_model_uses_a_picture_its_own_way_unless_told_otherwise(uses, options, use):
    assert check_options(uses, 4, **options) == use


@pytest.mark.parametrize(
    ("num_steps", "strength", "first"),
    [(28, 0.6, 11), (10, 0.6, 4), (4, 1.0, 0), (4, 0.01, 3), (3, 0.5, 1), (5, 0.2, 4), (50, 0.3, 35)],
)
def test_strength_is_the_fraction_of_the_steps_that_run(num_steps, strength, first):
    assert image_input(START, (8, 8), 4, picture(), strength=strength).first_step(num_steps) == first


# pictures


def test_a_picture_to_start_from_is_stretched_to_the_size_that_is_drawn():
    made = image_input(START, (16, 8), 4, picture())
    expected = picture().resize((8, 16), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(made.pixels, np.asarray(expected))
    assert (made.size, made.strength, made.mask) == ((16, 8), 0.6, None)
    assert made.values.shape == (1, 3, 16, 8)
    np.testing.assert_allclose(made.values[0].transpose(1, 2, 0), made.pixels / 127.5 - 1, rtol=0, atol=1e-6)


def test_white_in_the_mask_is_painted_anew_and_hidden():
    made = image_input(FILL, (12, 20), 4, picture(), mask_of(slice(5, 9)))
    assert made.strength == 1.0
    np.testing.assert_array_equal(made.mask, np.tile((np.arange(20) >= 5) & (np.arange(20) < 9), (12, 1)))
    assert not made.masked_values[..., 5:9].any()
    np.testing.assert_array_equal(made.masked_values[..., :5], made.values[..., :5])
    np.testing.assert_array_equal(made.masked_values[..., 9:], made.values[..., 9:])


@pytest.mark.parametrize(("grey", "anew"), [(127, False), (128, True)])
def test_half_as_bright_as_white_is_painted_anew(grey, anew):
    mask = Image.new("L", (20, 12), grey)
    assert (image_input(START, (12, 20), 4, picture(), mask).mask == anew).all()


def test_a_mask_of_another_size_is_refused_with_both():
    with pytest.raises(ValueError, match="the mask has 20 x 16 px and the image 20 x 12; they must have one"):
        image_input(START, (12, 20), 4, picture(), mask_of(slice(3), height=16))


def test_pictures_that_differ_anywhere_look_different_to_ranks():
    options = {"mask": mask_of(slice(5)), "strength": 0.5}
    made = image_input(START, (12, 20), 4, picture(), **options)
    assert repr(image_input(START, (12, 20), 4, picture(), **options)) == repr(made)
    for changes in ({"mask": mask_of(slice(6))}, {"mask": None}, {"strength": 0.4}):
        assert repr(image_input(START, (12, 20), 4, picture(), **{**options, **changes})) != repr(made)
    assert repr(image_input(START, (12, 20), 4, picture(seed=1), **options)) != repr(made)


# references


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1000, 1000), (1024, 1024)), ((4000, 3000), (880, 1184)), ((300, 900), (1568, 672)),
        ((1920, 1080), (752, 1392)), ((17, 17), (1024, 1024)),
    ],
)  # fmt: skip
def test_a_reference_gets_the_trained_size_of_the_nearest_aspect(size, expected):
    assert reference_size(size, 16, resize=True) == expected


def test_a_reference_may_keep_its_size_but_for_what_does_not_divide():
    assert reference_size((1000, 530), 16, resize=False) == (528, 992)
    made = image_input(REFERENCE, (64, 64), 4, picture(23, 13), resize=False)
    assert (made.size, made.first_step(7)) == ((12, 20), 0)


@pytest.mark.parametrize("resize", [False, True])
def test_a_reference_smaller_than_a_token_is_refused(resize):
    with pytest.raises(ValueError, match="the image has 40 x 15 px; each side must have at least 16"):
        reference_size((40, 15), 16, resize)


def test_trained_sizes_have_about_a_million_pixels_and_come_in_pairs():
    assert {(h, w) for w, h in REFERENCE_SIZES} == set(REFERENCE_SIZES)
    assert all(abs(w * h / 2**20 - 1) < 0.02 for w, h in REFERENCE_SIZES)


# files


def test_pictures_are_read_upright_and_in_colour(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    grey = picture().convert("L")
    grey.save(tmp_path / "turned.png", exif=exif)
    turned = read(tmp_path / "turned.png")
    assert (turned.size, turned.mode) == ((12, 20), "RGB")
    np.testing.assert_array_equal(np.asarray(turned)[..., 0], np.rot90(np.asarray(grey), -1))


def test_files_that_are_no_picture_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="a picture is given as ndarray"):
        read(np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(ValueError, match="absent.png'.*: there is no such file"):
        read(tmp_path / "absent.png")
    picture(64, 64).save(tmp_path / "torn.png")
    content = (tmp_path / "torn.png").read_bytes()
    for name, part in {"torn.png": content[:-2000], "text.png": b"not a picture", "empty.png": b""}.items():
        (tmp_path / name).write_bytes(part)
        with pytest.raises(ValueError, match=f"{name}' cannot be read"):
            read(tmp_path / name)


def test_all_ranks_get_what_the_first_rank_reads(tmp_path):
    picture().save(tmp_path / "there.png")

    def run(context):
        # a path that other ranks do not have
        path = tmp_path / ("there.png" if context.rank == 0 else "absent.png")
        pictures, problem = from_first_rank(context, {"image": path, "mask": picture(8, 4, seed=2)})
        return {name: np.asarray(p) for name, p in pictures.items()}, problem

    for pictures, problem in ParallelContext.local(3, run, ulysses_degree=3):
        assert problem is None
        np.testing.assert_array_equal(pictures["image"], np.asarray(picture()))
        np.testing.assert_array_equal(pictures["mask"], np.asarray(picture(8, 4, seed=2)))


def test_all_ranks_hear_why_the_first_rank_cannot_read(tmp_path):
    def run(context):
        return from_first_rank(context, {"image": tmp_path / "absent.png"})

    for pictures, problem in ParallelContext.local(2, run, ulysses_degree=2):
        assert pictures == {}
        assert "there is no such file" in problem
