"""One call of a pipeline, checked and complete: every field that can change a bit of the result."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

MAX_SEQUENCE_LENGTH = 512  # as in diffusers


@dataclass(frozen=True)
class Limits:
    """What a pipeline's model allows, and what it takes where a request says nothing."""

    size: int  # default height and width, in pixels
    multiple: int  # height and width must be multiples of this many pixels
    latent_channels: int
    max_sequence_length: int  # default number of text tokens

    def latent_shape(self, batch: int, height: int, width: int) -> tuple[int, int, int, int]:
        """[B, C, h, w] of the latents of ``batch`` pictures of height x width pixels."""
        patch = self.multiple // 2
        return batch, self.latent_channels, height // patch, width // patch


@dataclass(frozen=True)
class Request:
    """A checked call. ``negative_prompts`` is None where there is one guidance branch only."""

    prompts: tuple[str, ...]
    negative_prompts: tuple[str, ...] | None
    num_inference_steps: int
    guidance_scale: float
    true_cfg_scale: float
    height: int
    width: int
    num_images_per_prompt: int
    max_sequence_length: int
    seed: int | None = None
    latents: np.ndarray | None = None

    @classmethod
    def create(
        cls,
        limits: Limits,
        prompt: str | Sequence[str],
        negative_prompt: str | Sequence[str] | None = None,
        *,
        num_inference_steps: int = 28,
        guidance_scale: float = 3.5,
        true_cfg_scale: float = 1.0,
        height: int | None = None,
        width: int | None = None,
        num_images_per_prompt: int = 1,
        max_sequence_length: int | None = None,
        seed: int | None = None,
        latents: np.ndarray | None = None,
    ) -> Request:
        """Fill in the defaults and check everything. ValueError names the values and what is legal."""
        prompts = _texts("prompt", prompt)
        negatives = None
        if negative_prompt is not None:
            negatives = _matching_negatives(_texts("negative_prompt", negative_prompt), len(prompts))
        for name, number in (
            ("num_inference_steps", num_inference_steps),
            ("num_images_per_prompt", num_images_per_prompt),
        ):
            if number < 1:
                raise ValueError(f"{name} is {number}; at least 1 is needed")
        for name, scale in (("guidance_scale", guidance_scale), ("true_cfg_scale", true_cfg_scale)):
            if not (math.isfinite(scale) and scale >= 0):
                raise ValueError(f"{name} is {scale}; it must be a finite number of at least 0")
        if seed is not None and not -(2**63) <= seed < 2**64:
            raise ValueError(f"seed {seed} is outside -2**63 .. 2**64 - 1")
        length = limits.max_sequence_length if max_sequence_length is None else max_sequence_length
        if not 1 <= length <= MAX_SEQUENCE_LENGTH:
            raise ValueError(f"max_sequence_length is {length}; legal are 1 to {MAX_SEQUENCE_LENGTH}")
        request = cls(
            prompts,
            negatives if true_cfg_scale > 1 else None,
            num_inference_steps,
            float(guidance_scale),
            float(true_cfg_scale),
            _size("height", height, limits),
            _size("width", width, limits),
            num_images_per_prompt,
            length,
            seed,
            latents,
        )
        expected = limits.latent_shape(request.batch, request.height, request.width)
        if latents is not None and latents.shape != expected:
            raise ValueError(f"latents have shape {latents.shape}; this request needs {expected}")
        return request

    @property
    def batch(self) -> int:
        """Pictures drawn: prompts times pictures per prompt."""
        return len(self.prompts) * self.num_images_per_prompt

    @property
    def branches(self) -> tuple[tuple[str, ...], ...]:
        """Prompts of each guidance branch, unconditional first."""
        return (self.prompts,) if self.negative_prompts is None else (self.negative_prompts, self.prompts)

    def with_seed(self, seed: int) -> Request:
        return replace(self, seed=seed)

    def lines(self) -> list[str]:
        """One line a field, for ranks to compare."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.latents is not None:
            values["latents"] = hashlib.sha256(self.latents.astype(np.float32).tobytes()).hexdigest()
        return [f"{name} = {value!r}" for name, value in values.items()]


def _texts(name: str, text: str | Sequence[str]) -> tuple[str, ...]:
    texts = (text,) if isinstance(text, str) else tuple(text)
    if not texts:
        raise ValueError(f"{name} is an empty list; give at least one text")
    for item in texts:
        if not isinstance(item, str):
            raise ValueError(f"{name} holds {item!r}; it must be a text or a list of texts")
    return texts


def _matching_negatives(negatives: tuple[str, ...], count: int) -> tuple[str, ...]:
    if len(negatives) not in (1, count):
        raise ValueError(f"{len(negatives)} negative prompts for {count} prompts; give 1 or {count}")
    return negatives * count if len(negatives) == 1 else negatives


def _size(name: str, pixels: int | None, limits: Limits) -> int:
    if pixels is None:
        return limits.size
    below = pixels // limits.multiple * limits.multiple
    if pixels < 1 or below != pixels:
        legal = [size for size in (below, below + limits.multiple) if size > 0] or [limits.multiple]
        raise ValueError(
            f"{name} is {pixels} px; it must be a multiple of {limits.multiple}, "
            f"nearest: {' or '.join(map(str, legal))}"
        )
    return pixels
