"""Decoded arrays to pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgedit.errors import EdgeditError

if TYPE_CHECKING:
    from PIL.Image import Image


def to_pixels(images: np.ndarray) -> np.ndarray:
    """[B, 3, H, W] in [-1, 1] -> uint8 [B, H, W, 3]; values beyond are clipped.

    Raises EdgeditError for a picture that cannot be meant: not finite, or one value everywhere.
    """
    unit = np.clip(images * np.float32(0.5) + np.float32(0.5), 0.0, 1.0)
    if not np.isfinite(unit).all():
        raise EdgeditError("the decoded picture holds values that are not finite")
    pixels = (unit * np.float32(255.0)).round().astype(np.uint8)
    for index, picture in enumerate(pixels):
        if picture.min() == picture.max():
            raise EdgeditError(
                f"picture {index} is {picture.flat[0]} everywhere: the weights cannot be right"
            )
    return pixels.transpose(0, 2, 3, 1)


def to_pil(images: np.ndarray) -> list[Image]:
    """[B, 3, H, W] in [-1, 1] -> RGB pictures; errors as ``to_pixels``."""
    from PIL import Image

    return [Image.fromarray(np.ascontiguousarray(pixels)) for pixels in to_pixels(images)]
