"""One call of a pipeline, checked and complete: every field that can change a bit of the result."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from edgedit.pipelines.image_inputs import REFERENCE, START, ImageInput

MAX_SEQUENCE_LENGTH = 512  # as in diffusers


@dataclass(frozen=True)
class Limits:
    """What a pipeline's model allows, and what it takes where a request says nothing.

    Guidance is of two kinds. With `is_guided_by_branches`, `guidance_scale` above 1 is classifier-free guidance,
    against an empty prompt where there is no negative one. Otherwise it is an input of the model, and classifier-free
    guidance takes a negative prompt and `true_cfg_scale` above 1.
    """

    size: int  # default height and width, in pixels
    multiple: int  # height and width must be multiples of this many pixels
    latent_channels: int
    max_sequence_length: int  # default number of text tokens
    largest: int | None = None  # most pixels along a side
    guidance_scale: float = 3.5  # default
    is_guided_by_branches: bool = False
    num_skippable_layers: int = 0  # layers that guidance may leave out
    image_uses: tuple[str, ...] = (START,)  # of a picture, see image_inputs; the first is the default

    @property
    def needs_for_guidance(self) -> str:
        """What a request needs for a second guidance branch."""
        return "guidance_scale" if self.is_guided_by_branches else "a negative prompt and true_cfg_scale"

    def latent_shape(self, batch: int, height: int, width: int) -> tuple[int, int, int, int]:
        """[B, C, h, w] of the latents of ``batch`` pictures of height x width pixels."""
        patch = self.multiple // 2
        return batch, self.latent_channels, height // patch, width // patch

    def image_tokens(self, height: int, width: int) -> int:
        """Tokens of a picture of height x width pixels."""
        return (height // self.multiple) * (width // self.multiple)


@dataclass(frozen=True)
class SkipLayerGuidance:
    """Guidance away from the same model without some layers, in the steps between two fractions of all steps."""

    layers: tuple[int, ...]
    scale: float = 2.8
    start: float = 0.01
    stop: float = 0.2

    def __post_init__(self) -> None:
        for name in ("scale", "start", "stop"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"skip_layer_guidance_{name} is {value}; it must be a finite number of at least 0"
                )

    def is_active(self, step: int, num_steps: int) -> bool:
        return num_steps * self.start < step < num_steps * self.stop


@dataclass(frozen=True)
class Request:
    """A checked call. ``negative_prompts`` is None where there is one guidance branch only; ``true_cfg_scale`` is the
    scale of classifier-free guidance, whatever the model's own word for it."""

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
    skip_layer_guidance: SkipLayerGuidance | None = None
    batch_size: int | None = None  # most pictures that a replica denoises at once
    guidance_rescale: float = 0.0  # how far guided predictions keep the deviation of conditional ones, 0 to 1
    vae_tile: int | None = None  # side of the tiles in which pictures are decoded, in pixels
    image: ImageInput | None = None

    @classmethod
    def create(
        cls,
        limits: Limits,
        prompt: str | Sequence[str],
        negative_prompt: str | Sequence[str] | None = None,
        *,
        num_inference_steps: int = 28,
        guidance_scale: float | None = None,
        true_cfg_scale: float | None = None,
        height: int | None = None,
        width: int | None = None,
        num_images_per_prompt: int = 1,
        max_sequence_length: int | None = None,
        seed: int | None = None,
        latents: np.ndarray | None = None,
        skip_guidance_layers: Sequence[int] | None = None,
        skip_layer_guidance_scale: float = SkipLayerGuidance.scale,
        skip_layer_guidance_start: float = SkipLayerGuidance.start,
        skip_layer_guidance_stop: float = SkipLayerGuidance.stop,
        batch_size: int | None = None,
        guidance_rescale: float = 0.0,
        vae_tile: int | None = None,
    ) -> Request:
        """Fill in the defaults and check everything. ValueError names the values and what is legal."""
        prompts = _texts("prompt", prompt)
        guidance_scale, true_cfg_scale = _scales(guidance_scale, true_cfg_scale, limits)
        negatives = None
        if negative_prompt is None and limits.is_guided_by_branches:
            negative_prompt = ""
        if negative_prompt is not None:
            negatives = _matching_negatives(_texts("negative_prompt", negative_prompt), len(prompts))
        for name, number in (
            ("num_inference_steps", num_inference_steps),
            ("num_images_per_prompt", num_images_per_prompt),
            ("batch_size", batch_size),
            ("vae_tile", vae_tile),
        ):
            if number is not None and number < 1:
                raise ValueError(f"{name} is {number}; at least 1 is needed")
        if not 0 <= guidance_rescale <= 1:
            raise ValueError(f"guidance_rescale is {guidance_rescale}; legal are 0 to 1")
        if seed is not None and not -(2**63) <= seed < 2**64:
            raise ValueError(f"seed {seed} is outside -2**63 .. 2**64 - 1")
        length = limits.max_sequence_length if max_sequence_length is None else max_sequence_length
        if not 1 <= length <= MAX_SEQUENCE_LENGTH:
            raise ValueError(f"max_sequence_length is {length}; legal are 1 to {MAX_SEQUENCE_LENGTH}")
        request = cls(
            prompts,
            negatives if true_cfg_scale > 1 else None,
            num_inference_steps,
            guidance_scale,
            true_cfg_scale,
            _size("height", height, limits),
            _size("width", width, limits),
            num_images_per_prompt,
            length,
            seed,
            latents,
            _skip_layer_guidance(
                skip_guidance_layers,
                (skip_layer_guidance_scale, skip_layer_guidance_start, skip_layer_guidance_stop),
                true_cfg_scale,
                limits,
            ),
            batch_size,
            float(guidance_rescale),
            vae_tile,
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
        """Prompts of each guidance branch: unconditional, conditional, and conditional without some layers."""
        if self.negative_prompts is None:
            return (self.prompts,)
        guided = (self.negative_prompts, self.prompts)
        return guided if self.skip_layer_guidance is None else (*guided, self.prompts)

    def tokens_read(self, limits: Limits) -> int:
        """Image tokens that the transformer reads, those of a reference included."""
        tokens = limits.image_tokens(self.height, self.width)
        if self.image is not None and self.image.use == REFERENCE:
            tokens += limits.image_tokens(*self.image.size)
        return tokens

    def with_seed(self, seed: int) -> Request:
        return replace(self, seed=seed)

    def part(self, pictures: range, noise: np.ndarray) -> Request:
        """The request for some of the pictures: prompts stand once a picture, and of the whole batch's noise
        [B, C, h, w] the rows of these pictures are the starting latents."""

        def of_pictures(prompts: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(prompts[picture // self.num_images_per_prompt] for picture in pictures)

        negatives = self.negative_prompts
        return replace(
            self,
            prompts=of_pictures(self.prompts),
            negative_prompts=None if negatives is None else of_pictures(negatives),
            num_images_per_prompt=1,
            latents=noise[pictures.start : pictures.stop],
        )

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
        legal = "1" if count == 1 else f"1 or {count}"
        raise ValueError(f"{len(negatives)} negative prompts for {count} prompts; give {legal}")
    return negatives * count if len(negatives) == 1 else negatives


def _scales(
    guidance_scale: float | None, true_cfg_scale: float | None, limits: Limits
) -> tuple[float, float]:
    """The guidance input and the scale of classifier-free guidance, which are one for models guided by branches."""
    guidance = limits.guidance_scale if guidance_scale is None else guidance_scale
    if true_cfg_scale is None:
        true_cfg_scale = guidance if limits.is_guided_by_branches else 1.0
    for name, scale in (("guidance_scale", guidance), ("true_cfg_scale", true_cfg_scale)):
        if not (math.isfinite(scale) and scale >= 0):
            raise ValueError(f"{name} is {scale}; it must be a finite number of at least 0")
    if limits.is_guided_by_branches and true_cfg_scale != guidance:
        raise ValueError(
            f"true_cfg_scale is {true_cfg_scale} and guidance_scale {guidance}; this model has one guidance, "
            "which guidance_scale sets"
        )
    return float(guidance), float(true_cfg_scale)


def _skip_layer_guidance(
    layers: Sequence[int] | None, numbers: tuple[float, float, float], true_cfg_scale: float, limits: Limits
) -> SkipLayerGuidance | None:
    if layers is None:
        return None
    unknown = [layer for layer in layers if layer not in range(limits.num_skippable_layers)]
    if unknown or not layers:
        legal = f"0 to {limits.num_skippable_layers - 1}" if limits.num_skippable_layers else "none here"
        raise ValueError(f"skip_guidance_layers is {list(layers)}; legal layers: {legal}")
    if true_cfg_scale <= 1:
        raise ValueError(
            f"skip_guidance_layers needs guidance between branches, but guidance_scale is {true_cfg_scale}; "
            "it must be above 1"
        )
    return SkipLayerGuidance(tuple(sorted(set(layers))), *map(float, numbers))


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
    if limits.largest is not None and pixels > limits.largest:
        raise ValueError(f"{name} is {pixels} px; this model draws at most {limits.largest}")
    return pixels
