"""FLUX.1: CLIP and T5 read the prompt, a rectified-flow transformer denoises, a VAE paints.

The mathematics is that of ``FluxPipeline`` in diffusers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedit.models.autoencoder_kl import AutoencoderKL
from edgedit.models.clip import CLIPTextModel
from edgedit.models.flux import FluxTransformer
from edgedit.models.patches import unpatchify
from edgedit.models.t5 import T5EncoderModel
from edgedit.models.tokenizers import Tokenizer
from edgedit.pipelines.encoded_text import Text
from edgedit.pipelines.flux_image_tokens import image_tokens
from edgedit.pipelines.flux_settings import FluxSettings
from edgedit.pipelines.image_encoding import EncodedImage
from edgedit.pipelines.request import Request
from edgedit.pipelines.text_to_image import TextToImage


class FluxPipeline(TextToImage):
    """Draws pictures with a FLUX.1 model; made by ``Pipeline.from_pretrained``."""

    settings: FluxSettings
    tokenizer: Tokenizer
    tokenizer_2: Tokenizer
    text_encoder: CLIPTextModel
    text_encoder_2: T5EncoderModel
    transformer: FluxTransformer

    @classmethod
    def components(cls, settings: FluxSettings) -> tuple[dict[str, Any], tuple[str, ...]]:
        networks = {
            "text_encoder": CLIPTextModel,
            "text_encoder_2": T5EncoderModel,
            "transformer": FluxTransformer,
            "vae": AutoencoderKL,
        }
        return networks, ("tokenizer", "tokenizer_2")

    def tokenize(self, prompt: str, length: int) -> tuple[np.ndarray, np.ndarray]:
        return self.tokenizer.encode([prompt])[0], self.tokenizer_2.encode([prompt], length)[0]

    def encode(self, prompt: str, length: int) -> Text:
        clip_ids, t5_ids = self.tokenize(prompt, length)
        clip, t5 = self.text_encoder, self.text_encoder_2
        return self.encoded.get((prompt, length, clip, t5), lambda: Text(t5(t5_ids), clip(clip_ids)[1]))

    def guidance(self, request: Request) -> np.ndarray | None:
        if not self.settings.guidance_embeds:
            return None
        return np.full(request.batch, request.guidance_scale, np.float32)

    def velocity(
        self,
        latents: np.ndarray,
        text: Text,
        modulations: np.ndarray,
        skip_layers: tuple[int, ...],
        image: EncodedImage | None,
    ) -> np.ndarray:
        _, _, height, width = latents.shape
        hidden_states, img_ids = image_tokens(latents, image)
        tokens = self.transformer.velocity(
            hidden_states=hidden_states,
            encoder_hidden_states=text.sequence,
            modulations=modulations,
            img_ids=img_ids,
            txt_ids=np.zeros((text.sequence.shape[1], 3), np.float32),
        )
        return unpatchify(tokens[:, : height * width // 4], height, width)
