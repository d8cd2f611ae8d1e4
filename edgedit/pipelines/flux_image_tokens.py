"""The image tokens that a FLUX transformer reads: those of the latents, and what a picture puts beside them."""

from __future__ import annotations

import numpy as np

from edgedit.models.patches import patchify
from edgedit.pipelines.image_encoding import EncodedImage
from edgedit.pipelines.latents import image_ids


def image_tokens(latents: np.ndarray, image: EncodedImage | None) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [B, S, K] and their positions [S, 3] for latents [B, C, h, w]; those of the latents stand first.

    Channels beside the latents widen the tokens (FLUX.1-Fill); a reference adds tokens whose positions have 1 on the
    first axis (FLUX.1-Kontext).
    """
    batch, _, height, width = latents.shape
    if image is not None and image.beside is not None:
        latents = np.concatenate([latents, _for_batch(image.beside, batch)], axis=1)
    tokens, ids = patchify(latents), image_ids(height, width)
    if image is not None and image.reference is not None:
        reference_ids = image_ids(*image.reference.shape[2:])
        reference_ids[:, 0] = 1
        tokens = np.concatenate([tokens, patchify(_for_batch(image.reference, batch))], axis=1)
        ids = np.concatenate([ids, reference_ids])
    return tokens, ids


def _for_batch(values: np.ndarray, batch: int) -> np.ndarray:
    return np.broadcast_to(values, (batch, *values.shape[1:]))
