"""Pictures that a request brings: read from files by world rank 0, given to all ranks, fitted to a size.

Reading and resizing are those of diffusers' `load_image` and `VaeImageProcessor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgedit.parallel.buffer import Buffer

if TYPE_CHECKING:
    from PIL.Image import Image

    from edgedit.parallel.context import ParallelContext


def read(source: str | Path | Image) -> Image:
    """The RGB picture of a file, turned upright as its EXIF data says, or of what is a picture already.

    Raises ValueError naming a file that is missing or no picture.
    """
    from PIL import Image as images
    from PIL import ImageOps

    if isinstance(source, images.Image):
        return source.convert("RGB")
    if not isinstance(source, (str, Path)):
        raise ValueError(f"a picture is given as {type(source).__name__}; legal: a file or a PIL picture")
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"picture {str(path)!r}: there is no such file")
    try:
        with images.open(path) as opened:
            return ImageOps.exif_transpose(opened).convert("RGB")
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise ValueError(f"picture {str(path)!r} cannot be read: {error}") from error


def from_first_rank(
    context: ParallelContext, sources: Mapping[str, str | Path | Image]
) -> tuple[dict[str, Image], str | None]:
    """The pictures by name as world rank 0 reads them, on every rank; or none, and why they cannot be read."""
    from PIL import Image as images

    arrays: dict[str, np.ndarray] = {}
    problem = None
    if context.rank == 0:
        try:
            arrays = {name: np.asarray(read(source)) for name, source in sources.items()}
        except ValueError as error:
            problem = str(error)
    problem = context.broadcast_object(problem)
    if problem is not None:
        return {}, problem
    shapes = context.broadcast_object({name: array.shape for name, array in arrays.items()})
    world = context.group("world")
    pictures = {}
    for name, shape in shapes.items():
        pixels = np.ascontiguousarray(arrays[name]) if context.rank == 0 else np.empty(shape, np.uint8)
        world.broadcast(Buffer.of(pixels), label=f"picture {name}")
        pictures[name] = images.fromarray(pixels)
    return pictures, None


def fitted(picture: Image, height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3]: stretched to the size where it has another."""
    return np.asarray(_resized(picture, height, width))


def fitted_mask(picture: Image, height: int, width: int) -> np.ndarray:
    """bool [height, width]: where the picture, stretched likewise, is at least half as bright as white."""
    grey = np.asarray(_resized(picture, height, width).convert("L"))
    return grey.astype(np.float32) / np.float32(255) >= 0.5


def to_values(pixels: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] -> float32 [1, 3, H, W] in [-1, 1], as an autoencoder reads it."""
    unit = pixels.astype(np.float32) / np.float32(255)
    return np.ascontiguousarray((np.float32(2) * unit - np.float32(1)).transpose(2, 0, 1)[None])


def _resized(picture: Image, height: int, width: int) -> Image:
    from PIL import Image as images

    return picture.resize((width, height), resample=images.Resampling.LANCZOS)
