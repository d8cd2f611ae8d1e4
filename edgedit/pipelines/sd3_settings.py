"""What the configs of a Stable Diffusion 3 or 3.5 pipeline say, read without weights."""

from __future__ import annotations

from dataclasses import dataclass

from edgedit.models.sd3_config import PATCH, SD3Config
from edgedit.models.tokenizers import Tokenizer
from edgedit.pipelines.fitting import check_latents, check_width, stated
from edgedit.pipelines.parts import Parts
from edgedit.pipelines.published import SD3
from edgedit.pipelines.request import Limits
from edgedit.pipelines.text_to_image_settings import (
    TextToImageSettings,
    common_fields,
    vae_scale,
)

T5 = "T5EncoderModel"
MAX_T5_TOKENS = 256  # default, as in diffusers
GUIDANCE_SCALE = 7.0  # default, as in diffusers
CLIP_TOKENS = 77


@dataclass(frozen=True)
class SD3Settings(TextToImageSettings):
    """The configs of a Stable Diffusion 3 pipeline.

    has_t5             False for a model without the third text encoder, whose states are zeros then
    text_width         channels of the text states
    fixed_text_tokens  those of both CLIP encoders, which stand before those of T5
    """

    family = "StableDiffusion3Pipeline"

    has_t5: bool
    text_width: int
    fixed_text_tokens: int = CLIP_TOKENS

    @classmethod
    def read(cls, parts: Parts) -> SD3Settings:
        parts.check(SD3.needed)
        third = parts.classes.get("text_encoder_3")
        if third not in (T5, None):
            raise ValueError(f"{parts.title}: text_encoder_3 is {third!r}; supported is {T5!r}, or none")
        transformer = SD3Config.from_dict(parts.config("transformer"))
        vae = parts.config("vae")
        _check_widths(parts, transformer, has_t5=third is not None)
        return cls(
            **common_fields(parts, vae),
            limits=limits_of(transformer, vae_scale(vae)),
            num_heads=transformer.num_attention_heads,
            head_dim=transformer.attention_head_dim,
            has_t5=third is not None,
            text_width=transformer.joint_attention_dim,
            fixed_text_tokens=Tokenizer.from_dir(parts.tokenizer("tokenizer")).model_max_length or CLIP_TOKENS,
        )


def _check_widths(parts: Parts, transformer: SD3Config, has_t5: bool) -> None:
    """Raises ValueError for parts that do not go together."""
    check_latents(parts, transformer.in_channels)
    projections = {"text_encoder": "projection_dim", "text_encoder_2": "projection_dim"}
    check_width(parts, "transformer", "pooled_projection_dim", projections)
    if has_t5:
        check_width(parts, "transformer", "joint_attention_dim", {"text_encoder_3": "d_model"})
    clip = sum(stated(parts, name, "hidden_size") or 0 for name in projections)
    if clip > transformer.joint_attention_dim:
        raise ValueError(
            f"{parts.title}: transformer takes text of {transformer.joint_attention_dim} channels "
            f"(joint_attention_dim), but both CLIP encoders give {clip} (hidden_size); they are of different models"
        )


def limits_of(transformer: SD3Config, scale: int) -> Limits:
    """What a transformer allows behind a VAE with `scale` pixels per latent position."""
    multiple = PATCH * scale
    return Limits(
        size=transformer.sample_size * scale // multiple * multiple,
        multiple=multiple,
        latent_channels=transformer.in_channels,
        max_sequence_length=MAX_T5_TOKENS,
        largest=transformer.pos_embed_max_size * multiple,
        guidance_scale=GUIDANCE_SCALE,
        is_guided_by_branches=True,
        num_skippable_layers=transformer.num_layers,
    )
