"""What the configs of a FLUX.1 directory say, read without weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgedit.models.tokenizers import Tokenizer
from edgedit.pipelines.request import MAX_SEQUENCE_LENGTH, Limits
from edgedit.pipelines.settings import read_json
from edgedit.pipelines.text_to_image_settings import (
    TextToImageSettings,
    check_components,
    common_fields,
    vae_scale,
)

COMPONENTS = {
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "T5EncoderModel",
    "transformer": "FluxTransformer2DModel",
    "vae": "AutoencoderKL",
}
_DEFAULT_LATENT_SIZE = 128  # diffusers' default_sample_size


@dataclass(frozen=True)
class FluxSettings(TextToImageSettings):
    """The configs of a FLUX pipeline."""

    family = "FluxPipeline"

    guidance_embeds: bool

    @classmethod
    def read(cls, directory: Path) -> FluxSettings:
        check_components(directory, COMPONENTS)
        transformer = read_json(directory / "transformer" / "config.json")
        vae = read_json(directory / "vae" / "config.json")
        scale = vae_scale(vae)
        size = vae.get("sample_size") or 0
        if size < 1 or size % (2 * scale):
            size = _DEFAULT_LATENT_SIZE * scale
        length = Tokenizer.from_dir(directory / "tokenizer_2").model_max_length or MAX_SEQUENCE_LENGTH
        return cls(
            **common_fields(directory, vae),
            limits=Limits(
                size=size,
                multiple=2 * scale,
                latent_channels=transformer.get("in_channels", 64) // 4,
                max_sequence_length=min(length, MAX_SEQUENCE_LENGTH),
            ),
            num_heads=transformer.get("num_attention_heads", 24),
            guidance_embeds=transformer.get("guidance_embeds", False),
        )
