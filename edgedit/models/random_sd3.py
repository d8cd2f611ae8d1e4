"""Random arguments of a Stable Diffusion 3 transformer, to measure with."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedit.models.sd3 import PATCH, SD3Config


def request_of(
    config: SD3Config, rows: int, columns: int, text_tokens: int, batch: int = 1, seed: int = 0
) -> dict[str, Any]:
    """Keyword arguments of one forward pass over `rows` x `columns` image tokens, drawn from a normal distribution."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    return {
        "hidden_states": draw(batch, config.in_channels, PATCH * rows, PATCH * columns),
        "encoder_hidden_states": draw(batch, text_tokens, config.joint_attention_dim),
        "pooled_projections": draw(batch, config.pooled_projection_dim),
        "timestep": np.full(batch, 500, np.float32),
    }
