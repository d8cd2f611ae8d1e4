"""A random FLUX of dimension 1024 with 2 + 4 blocks, and one call of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny import write_flux_transformer

from edgedit.models.flux import FluxTransformer
from edgedit.parallel.context import ParallelContext

SIDE, TEXT = 32, 128  # 1024 image tokens


def write_mini(directory: Path) -> None:
    write_flux_transformer(
        directory,
        num_layers=2,
        num_single_layers=4,
        num_attention_heads=8,
        attention_head_dim=128,
        axes_dims_rope=[16, 56, 56],
        in_channels=64,
        joint_attention_dim=512,
        pooled_projection_dim=256,
    )


def request() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    rows, columns = np.indices((SIDE, SIDE)).reshape(2, -1)
    return {
        "hidden_states": rng.standard_normal((1, SIDE * SIDE, 64), dtype=np.float32),
        "encoder_hidden_states": rng.standard_normal((1, TEXT, 512), dtype=np.float32),
        "pooled_projections": rng.standard_normal((1, 256), dtype=np.float32),
        "timestep": np.full(1, 0.5, np.float32),
        "img_ids": np.stack([np.zeros_like(rows), rows, columns], 1),
        "txt_ids": np.zeros((TEXT, 3)),
    }


def run_flux(directory: Path, context: ParallelContext) -> np.ndarray:
    """The prediction of one step, wherever the context computes."""
    model = FluxTransformer.from_pretrained(directory, parallel=context)
    try:
        return model(**request())
    finally:
        model.close()
