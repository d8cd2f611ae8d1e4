"""What the configs of a Stable Diffusion 3 or 3.5 directory say, read without weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgedit.models.sd3 import PATCH, SD3Config
from edgedit.models.tokenizers import Tokenizer
from edgedit.pipelines.request import Limits
from edgedit.pipelines.settings import read_json
from edgedit.pipelines.text_to_image_settings import (
    TextToImageSettings,
    check_components,
    common_fields,
    vae_scale,
)

COMPONENTS = {
    "text_encoder": "CLIPTextModelWithProjection",
    "text_encoder_2": "CLIPTextModelWithProjection",
    "transformer": "SD3Transformer2DModel",
    "vae": "AutoencoderKL",
}
T5 = "T5EncoderModel"
MAX_T5_TOKENS = 256  # default, as in diffusers
GUIDANCE_SCALE = 7.0  # default, as in diffusers
CLIP_TOKENS = 77


@dataclass(frozen=True)
class SD3Settings(TextToImageSettings):
    """The configs of a Stable Diffusion 3 pipeline.

    has_t5             False for a directory without the third text encoder, whose states are zeros then
    text_width         channels of the text states
    fixed_text_tokens  those of both CLIP encoders, which stand before those of T5
    """

    family = "StableDiffusion3Pipeline"

    has_t5: bool
    text_width: int
    fixed_text_tokens: int = CLIP_TOKENS

    @classmethod
    def read(cls, directory: Path) -> SD3Settings:
        third = check_components(directory, COMPONENTS).get("text_encoder_3")
        if third not in (T5, None):
            raise ValueError(f"{directory}: text_encoder_3 is {third!r}; supported is {T5!r}, or none")
        transformer = SD3Config.from_dict(read_json(directory / "transformer" / "config.json"))
        vae = read_json(directory / "vae" / "config.json")
        return cls(
            **common_fields(directory, vae),
            limits=limits_of(transformer, vae_scale(vae)),
            num_heads=transformer.num_attention_heads,
            has_t5=third is not None,
            text_width=transformer.joint_attention_dim,
            fixed_text_tokens=Tokenizer.from_dir(directory / "tokenizer").model_max_length or CLIP_TOKENS,
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
