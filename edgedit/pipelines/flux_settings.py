"""What the configs of a FLUX.1 pipeline say, read without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedit.models.flux_config import FluxConfig
from edgedit.models.tokenizers import Tokenizer
from edgedit.pipelines.fitting import check_latents, check_width
from edgedit.pipelines.image_inputs import FILL, REFERENCE, START
from edgedit.pipelines.parts import Parts
from edgedit.pipelines.published import FLUX
from edgedit.pipelines.request import MAX_SEQUENCE_LENGTH, Limits
from edgedit.pipelines.text_to_image_settings import (
    TextToImageSettings,
    common_fields,
    vae_scale,
)

KONTEXT = "FluxKontextPipeline"  # its transformer is that of FLUX.1-dev, so only the pipeline's name tells
_DEFAULT_LATENT_SIZE = 128  # diffusers' default_sample_size
_FILL_GUIDANCE_SCALE = 30.0  # default, as in diffusers


@dataclass(frozen=True)
class FluxSettings(TextToImageSettings):
    """The configs of a FLUX pipeline."""

    family = "FluxPipeline"

    guidance_embeds: bool

    @classmethod
    def read(cls, parts: Parts) -> FluxSettings:
        parts.check(FLUX.needed)
        transformer = parts.config("transformer")
        config = FluxConfig.from_dict(transformer)
        vae = parts.config("vae")
        scale = vae_scale(vae)
        check_width(parts, "transformer", "joint_attention_dim", {"text_encoder_2": "d_model"})
        check_width(parts, "transformer", "pooled_projection_dim", {"text_encoder": "hidden_size"})
        size = vae.get("sample_size") or 0
        if type(size) is not int or size < 1 or size % (2 * scale):
            size = _DEFAULT_LATENT_SIZE * scale
        length = Tokenizer.from_dir(parts.tokenizer("tokenizer_2")).model_max_length or MAX_SEQUENCE_LENGTH
        limits = limits_of(transformer, parts.pipeline, size, scale, min(length, MAX_SEQUENCE_LENGTH))
        check_latents(parts, limits.latent_channels)
        return cls(
            **common_fields(parts, vae),
            limits=limits,
            num_heads=config.num_attention_heads,
            head_dim=config.attention_head_dim,
            guidance_embeds=config.guidance_embeds,
        )


def limits_of(
    transformer: Mapping[str, Any], pipeline: str | None, size: int, scale: int, max_sequence_length: int
) -> Limits:
    """What a transformer's config allows behind a VAE with `scale` pixels per latent position.

    pipeline  class name in model_index.json, which tells what the model does with a picture

    Raises ValueError for input channels that no supported model has.
    """
    channels = transformer.get("in_channels", 64)
    latent_channels = (transformer.get("out_channels") or channels) // 4
    # a fill model reads the masked picture's latents and the mask's pixels, in patches of 2 x 2 as everything
    filling = 4 * (2 * latent_channels + scale**2)
    if channels not in (4 * latent_channels, filling):
        raise ValueError(
            f"in_channels is {channels}; with {latent_channels} latent channels legal are {4 * latent_channels}, and "
            f"{filling} of models that fill a part of a picture"
        )
    fills = channels == filling
    uses = (FILL,) if fills else (REFERENCE, START) if pipeline == KONTEXT else (START, REFERENCE)
    return Limits(
        size=size,
        multiple=2 * scale,
        latent_channels=latent_channels,
        max_sequence_length=max_sequence_length,
        guidance_scale=_FILL_GUIDANCE_SCALE if fills else Limits.guidance_scale,
        image_uses=uses,
    )
