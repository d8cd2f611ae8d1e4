"""What a call says of the picture that it begins with, before any file is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgedit.pipelines.image_inputs import (
    DEFAULT_STRENGTHS,
    REFERENCE,
    check_options,
    first_step,
    image_input,
)
from edgedit.pipelines.pictures import from_first_rank
from edgedit.pipelines.request import Limits, Request

if TYPE_CHECKING:
    from PIL.Image import Image

    from edgedit.parallel.context import ParallelContext


@dataclass(frozen=True)
class ImageOptions:
    """Pictures as files or as they are, and what becomes of them; see `Pipeline.__call__`."""

    image: str | Path | Image | None = None
    mask_image: str | Path | Image | None = None
    strength: float | None = None
    resize_image: bool = True
    image_as: str | None = None

    def check(self, limits: Limits, num_steps: int) -> str:
        """What a model with these limits does with the picture. ValueError for options that it cannot follow."""
        return check_options(
            limits.image_uses,
            num_steps,
            has_image=self.image is not None,
            has_mask=self.mask_image is not None,
            strength=self.strength,
            image_as=self.image_as,
            resize=self.resize_image,
        )

    def num_steps(self, limits: Limits, num_steps: int) -> int:
        """How many of the steps run, for options that `check` has passed."""
        use = self.check(limits, num_steps)
        if self.image is None or use == REFERENCE:
            return num_steps
        return num_steps - first_step(DEFAULT_STRENGTHS[use] if self.strength is None else self.strength, num_steps)

    def added_to(
        self, request: Request, limits: Limits, context: ParallelContext
    ) -> tuple[Request, str | None]:
        """The request with the pictures, as world rank 0 reads them; or as it was, and why that cannot be. The same on
        every rank, for options that `check` has passed."""
        if self.image is None:
            return request, None
        sources = {"image": self.image}
        if self.mask_image is not None:
            sources["mask"] = self.mask_image
        pictures, problem = from_first_rank(context, sources)
        if problem is not None:
            return request, problem
        try:
            made = image_input(
                self.check(limits, request.num_inference_steps),
                (request.height, request.width),
                limits.multiple,
                pictures["image"],
                pictures.get("mask"),
                strength=self.strength,
                resize=self.resize_image,
            )
        except ValueError as error:
            return request, str(error)
        return replace(request, image=made), None
