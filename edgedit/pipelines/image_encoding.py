"""What the picture of a request becomes before the first step, encoded by world rank 0 for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edgedit.errors import EdgeditError
from edgedit.parallel.buffer import Buffer
from edgedit.pipelines.image_inputs import FILL, REFERENCE, ImageInput
from edgedit.sampling.noise import NoiseStream, noised

if TYPE_CHECKING:
    from edgedit.models.autoencoder_kl import AutoencoderKL
    from edgedit.parallel.context import ParallelContext
    from edgedit.pipelines.request import Request
    from edgedit.pipelines.text_to_image_settings import TextToImageSettings

# values [1, 3, H, W] -> mean and log variance of the latents [1, C, h, w]
Encode = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """One picture for all of a batch: f32 arrays [1, channels, rows, columns], scaled as the transformer reads them.

    start      [1, C, h, w] latents that noise covers before the first step
    anew       [1, 1, h, w] 1 where the picture is painted anew and 0 where it stays; None: anew everywhere
    beside     [1, K, h, w] channels that the transformer reads beside the latents
    reference  [1, C, h', w'] latents whose tokens the transformer reads beside those of the picture
    """

    start: np.ndarray | None = None
    anew: np.ndarray | None = None
    beside: np.ndarray | None = None
    reference: np.ndarray | None = None

    def first_latents(self, noise: np.ndarray, sigma: float) -> np.ndarray:
        """Where denoising begins, from noise [B, C, h, w]."""
        return noise if self.start is None else noised(self.start, noise, sigma)

    def kept(self, latents: np.ndarray, noise: np.ndarray, sigma: float) -> np.ndarray:
        """The latents with the picture, covered by noise as they are, wherever it is not painted anew."""
        if self.anew is None or self.start is None:
            return latents
        return (np.float32(1) - self.anew) * noised(self.start, noise, sigma) + self.anew * latents


def begin(
    context: ParallelContext, vae: AutoencoderKL | None, settings: TextToImageSettings, request: Request
) -> tuple[np.ndarray, EncodedImage | None]:
    """Noise for the whole batch, one draw, and what the request's picture becomes; the same on every rank."""
    limits = settings.limits
    assert request.seed is not None, "an agreed request has a seed"

    def encode(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        context.note(phase="encoding the picture")
        return moments_from_first_rank(context, vae, values, limits.latent_shape(1, *values.shape[2:]))

    return draw_and_encode(
        request.image,
        encode,
        NoiseStream(request.seed),
        limits.latent_shape(request.batch, request.height, request.width),
        request.latents,
        (settings.shift_factor, settings.scaling_factor),
    )


def draw_and_encode(
    image: ImageInput | None,
    encode: Encode,
    stream: NoiseStream,
    shape: tuple[int, ...],
    noise: np.ndarray | None,
    scaling: tuple[float, float],
) -> tuple[np.ndarray, EncodedImage | None]:
    """The starting noise of `shape`, unless given, and the encoded picture; draws in the order of diffusers' pipelines.

    scaling  (shift, factor): the transformer reads (latents - shift) * factor
    """
    shift, factor = np.float32(scaling[0]), np.float32(scaling[1])

    def drawn_noise() -> np.ndarray:
        return stream.randn(shape) if noise is None else noise.astype(np.float32)

    def sampled(values: np.ndarray) -> np.ndarray:
        mean, logvar = encode(values)
        return (mean + np.exp(np.float32(0.5) * logvar) * stream.randn(mean.shape) - shift) * factor

    if image is None:
        return drawn_noise(), None
    if image.use == REFERENCE:
        return drawn_noise(), EncodedImage(reference=(encode(image.values)[0] - shift) * factor)
    start, first_noise = sampled(image.values), drawn_noise()
    if image.mask is None:
        return first_noise, EncodedImage(start)
    scale = image.size[0] // shape[2]
    if image.use == FILL:
        beside = np.concatenate([sampled(image.masked_values), mask_planes(image.mask, scale)], axis=1)
        return first_noise, EncodedImage(start, beside=beside)
    return first_noise, EncodedImage(start, anew=image.mask[None, None, ::scale, ::scale].astype(np.float32))


def mask_planes(mask: np.ndarray, scale: int) -> np.ndarray:
    """bool [H, W] -> f32 [1, scale * scale, H / scale, W / scale]: all pixels that one latent position covers."""
    height, width = mask.shape
    blocks = mask.reshape(height // scale, scale, width // scale, scale).transpose(1, 3, 0, 2)
    return blocks.reshape(1, scale * scale, height // scale, width // scale).astype(np.float32)


def moments_from_first_rank(
    context: ParallelContext, vae: AutoencoderKL | None, values: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and log variance of a picture's latents, `shape` each, as world rank 0 encodes them, on every rank.

    Raises EdgeditError on every rank where they are not finite.
    """
    if context.rank == 0:
        assert vae is not None, "world rank 0 has the autoencoder"
        moments = np.ascontiguousarray(np.stack(vae.encode(values)), np.float32)
    else:
        moments = np.empty((2, *shape), np.float32)
    assert moments.shape == (2, *shape), f"moments {moments.shape} of latents {shape}"
    context.group("world").broadcast(Buffer.of(moments), label="the encoded picture")
    if not np.isfinite(moments).all():
        raise EdgeditError("the encoded picture holds values that are not finite")
    return moments[0], moments[1]
