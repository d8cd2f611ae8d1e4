"""Stable Diffusion 3 and 3.5: two CLIP encoders and T5 read the prompt, an MMDiT denoises, a VAE paints.

The mathematics is that of ``StableDiffusion3Pipeline`` in diffusers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedit.models.autoencoder_kl import AutoencoderKL
from edgedit.models.clip import CLIPTextModelWithProjection
from edgedit.models.sd3 import SD3Transformer
from edgedit.models.t5 import T5EncoderModel
from edgedit.models.tokenizers import Tokenizer
from edgedit.pipelines.encoded_text import Text
from edgedit.pipelines.image_encoding import EncodedImage
from edgedit.pipelines.sd3_settings import SD3Settings
from edgedit.pipelines.text_to_image import TextToImage


class SD3Pipeline(TextToImage):
    """Draws pictures with a Stable Diffusion 3 or 3.5 model; made by ``Pipeline.from_pretrained``."""

    settings: SD3Settings
    tokenizer: Tokenizer
    tokenizer_2: Tokenizer
    tokenizer_3: Tokenizer | None = None
    text_encoder: CLIPTextModelWithProjection
    text_encoder_2: CLIPTextModelWithProjection
    text_encoder_3: T5EncoderModel | None = None
    transformer: SD3Transformer

    @classmethod
    def components(cls, settings: SD3Settings) -> tuple[dict[str, Any], tuple[str, ...]]:
        networks: dict[str, Any] = {
            "text_encoder": CLIPTextModelWithProjection,
            "text_encoder_2": CLIPTextModelWithProjection,
            "text_encoder_3": T5EncoderModel,
            "transformer": SD3Transformer,
            "vae": AutoencoderKL,
        }
        if settings.has_t5:
            return networks, ("tokenizer", "tokenizer_2", "tokenizer_3")
        del networks["text_encoder_3"]
        return networks, ("tokenizer", "tokenizer_2")

    def tokenize(self, prompt: str, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        clip_length = self.settings.fixed_text_tokens
        ids, ids_2 = (
            tokenizer.encode([prompt], clip_length)[0] for tokenizer in (self.tokenizer, self.tokenizer_2)
        )
        ids_3 = None if self.tokenizer_3 is None else self.tokenizer_3.encode([prompt], length)[0]
        return ids, ids_2, ids_3

    def encode(self, prompt: str, length: int) -> Text:
        ids, ids_2, ids_3 = self.tokenize(prompt, length)
        encoders = (self.text_encoder, self.text_encoder_2, self.text_encoder_3)
        return self.encoded.get(
            (prompt, length, *encoders), lambda: self._encode_ids(ids, ids_2, ids_3, length)
        )

    def _encode_ids(self, ids: np.ndarray, ids_2: np.ndarray, ids_3: np.ndarray | None, length: int) -> Text:
        """The tokens of T5 after those that both CLIP encoders make together, widened by zeros to the same channels."""
        states, pooled = self.text_encoder(ids)
        states_2, pooled_2 = self.text_encoder_2(ids_2)
        sequence = np.zeros((1, states.shape[1] + length, self.settings.text_width), np.float32)
        clip = np.concatenate([states, states_2], axis=2)
        sequence[:, : clip.shape[1], : clip.shape[2]] = clip
        if self.text_encoder_3 is not None and ids_3 is not None:
            sequence[:, clip.shape[1] :] = self.text_encoder_3(ids_3)
        return Text(sequence, np.concatenate([pooled, pooled_2], axis=1))

    def sigmas(self, num_steps: int, image_tokens: int) -> np.ndarray:
        return self.settings.schedule.sigmas(num_steps, image_tokens, to_lowest=True)

    def velocity(
        self,
        latents: np.ndarray,
        text: Text,
        modulations: np.ndarray,
        skip_layers: tuple[int, ...],
        image: EncodedImage | None,
    ) -> np.ndarray:
        return self.transformer.velocity(latents, text.sequence, modulations, skip_layers)
