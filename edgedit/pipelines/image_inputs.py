"""The picture that a request begins with: what models do with one, what is legal, and the checked result."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgedit.pipelines.pictures import fitted, fitted_mask, to_values

if TYPE_CHECKING:
    from PIL.Image import Image

# What a model does with a picture:
START = (
    "start"  # denoises it from where noise has covered some of it; with a mask, paints anew inside of it only
)
REFERENCE = "reference"  # reads its tokens beside those that it denoises
FILL = "fill"  # reads what a mask leaves of it, and the mask, in channels beside those that it denoises

DEFAULT_STRENGTHS = {START: 0.6, FILL: 1.0}  # as in diffusers

# Width and height, in pixels, of what FLUX.1-Kontext was trained on.
REFERENCE_SIZES = tuple(
    (16 * width, 16 * height)
    for width, height in (
        (42, 98), (43, 94), (45, 91), (47, 87), (50, 83), (52, 78), (55, 74), (59, 69), (64, 64),
        (69, 59), (74, 55), (78, 52), (83, 50), (87, 47), (91, 45), (94, 43), (98, 42),
    )
)  # fmt: skip
_LITTLE_STRETCHED = 1.1


@dataclass(frozen=True, eq=False)
class ImageInput:
    """A picture at the size at which it is encoded.

    pixels    uint8 [H, W, 3]
    use       what the model does with it
    mask      bool [H, W], True where the picture is painted anew; None without a mask
    strength  fraction of the denoising steps that run, the last ones: above 0, at most 1
    source    height and width in pixels before it was stretched to this size; None: the same
    """

    pixels: np.ndarray
    use: str = START
    mask: np.ndarray | None = None
    strength: float = 1.0
    source: tuple[int, int] | None = None

    def first_step(self, num_steps: int) -> int:
        """The first of `num_steps` steps that runs."""
        return first_step(self.strength, num_steps)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pixels.shape[0], self.pixels.shape[1]

    @property
    def values(self) -> np.ndarray:
        """float32 [1, 3, H, W] in [-1, 1]."""
        return to_values(self.pixels)

    @property
    def masked_values(self) -> np.ndarray:
        """The same with 0, grey, where it is painted anew."""
        assert self.mask is not None, "a picture without a mask has nothing to hide"
        return self.values * (~self.mask).astype(np.float32)

    def __repr__(self) -> str:
        """Equal for equal pictures only."""
        digests = [
            hashlib.sha256(array.tobytes()).hexdigest()
            for array in (self.pixels, self.mask)
            if array is not None
        ]
        return f"ImageInput({self.use}, {self.pixels.shape}, {', '.join(digests)}, {self.strength})"


def image_notes(image: ImageInput | None) -> list[str]:
    """What the caller may not expect of a picture's shape."""
    if image is None or image.source is None:
        return []
    (height, width), (own_height, own_width) = image.size, image.source
    stretched = width * own_height / (height * own_width)
    if max(stretched, 1 / stretched) <= _LITTLE_STRETCHED:
        return []
    return [f"the image of {own_width} x {own_height} px is stretched to {width} x {height}"]


def first_step(strength: float, num_steps: int) -> int:
    """Of `num_steps` steps the last `strength * num_steps` run, rounded up."""
    return int(max(num_steps - min(num_steps * strength, num_steps), 0))


def check_options(
    uses: Sequence[str],
    num_steps: int,
    *,
    has_image: bool,
    has_mask: bool = False,
    strength: float | None = None,
    image_as: str | None = None,
    resize: bool = True,
) -> str:
    """What a model that has these uses for a picture does with one: the first of them, or `image_as`.

    Raises ValueError for options that it cannot follow.
    """
    use = uses[0] if image_as is None else image_as
    if use not in uses:
        raise ValueError(f"image_as is {image_as!r}; legal for this model: {', '.join(uses)}")
    if not has_image:
        given = {"mask": has_mask, "strength": strength is not None, "image_as": image_as is not None,
                 "resize_image=False (--keep-image-size)": not resize}  # fmt: skip
        for name in [name for name, is_given in given.items() if is_given]:
            raise ValueError(f"{name} is given without image; it says what becomes of one")
        if use == FILL:
            raise ValueError("this model fills a part of a picture: it needs image and mask")
        return use
    if use == FILL and not has_mask:
        raise ValueError("this model fills a part of a picture: image is given, mask is missing")
    if use == REFERENCE:
        for name, is_given in (("mask", has_mask), ("strength", strength is not None)):
            if is_given:
                raise ValueError(f"the image is read as a reference, which takes no {name}")
    elif not resize:
        raise ValueError(
            "resize_image=False (--keep-image-size) is for references; here the image is stretched to what is drawn"
        )
    if strength is not None:
        if not 0 < strength <= 1:
            raise ValueError(f"strength is {strength}; it must be above 0 and at most 1")
        if first_step(strength, num_steps) >= num_steps:
            raise ValueError(f"strength {strength} leaves none of {num_steps} num_inference_steps to run")
    return use


def image_input(
    use: str,
    size: tuple[int, int],
    multiple: int,
    image: Image,
    mask: Image | None = None,
    *,
    strength: float | None = None,
    resize: bool = True,
) -> ImageInput:
    """The input for a request whose options `check_options` has passed.

    size      height and width in pixels of what is drawn; a picture to start from is stretched to it
    multiple  sides of a reference are multiples of this many pixels
    resize    give a reference the trained size of the nearest aspect ratio instead of its own

    Raises ValueError for a mask whose size is not the picture's, and for a reference that is too small.
    """
    if mask is not None and mask.size != image.size:
        raise ValueError(
            f"the mask has {mask.size[0]} x {mask.size[1]} px and the image {image.size[0]} x {image.size[1]}; "
            "they must have one size"
        )
    source = (image.size[1], image.size[0])
    if use == REFERENCE:
        height, width = reference_size(image.size, multiple, resize)
        return ImageInput(fitted(image, height, width), use, source=source)
    if strength is None:
        strength = DEFAULT_STRENGTHS[use]
    white = None if mask is None else fitted_mask(mask, *size)
    return ImageInput(fitted(image, *size), use, white, float(strength), source)


def reference_size(size: tuple[int, int], multiple: int, resize: bool) -> tuple[int, int]:
    """Height and width at which a reference of `size` (width, height) is read. Raises ValueError where one is 0."""
    width, height = size
    if min(size) < multiple:
        raise ValueError(f"the image has {width} x {height} px; each side must have at least {multiple}")
    if resize:
        aspect = (width // multiple * multiple) / (height // multiple * multiple)
        _, width, height = min((abs(aspect - w / h), w, h) for w, h in REFERENCE_SIZES)
    return height // multiple * multiple, width // multiple * multiple
