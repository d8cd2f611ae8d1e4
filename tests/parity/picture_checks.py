"""What a pipeline draws, step by step, and how it is compared with what diffusers draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgedit.config import ParallelConfig
from edgedit.pipelines.pipeline import Pipeline

Drawn = tuple[np.ndarray, np.ndarray]  # latents after each step [steps, B, C, h, w], pictures [B, H, W, 3]


def run_edgedit(directory: str | Path, seed: int, **call: Any) -> Drawn:
    steps = []
    with Pipeline.from_pretrained(directory, parallel=ParallelConfig()) as pipeline:
        result = pipeline(seed=seed, callback=lambda step, of, latents: steps.append(latents), **call)
    np.testing.assert_array_equal(steps[-1], result.latents)
    return np.stack(steps), np.stack([np.asarray(picture) for picture in result.images])


def assert_same(ours: Drawn, theirs: Drawn) -> None:
    (our_steps, our_pictures), (their_steps, their_pictures) = ours, theirs
    assert our_steps.shape == their_steps.shape
    error = np.abs(our_steps - their_steps).max(axis=(1, 2, 3, 4)) / np.abs(their_steps).max(
        axis=(1, 2, 3, 4)
    )
    assert (error <= 1e-4).all(), f"relative error of the latents after each step: {error}"
    assert our_pictures.shape == their_pictures.shape
    difference = np.abs(our_pictures.astype(int) - their_pictures.astype(int)).max()
    assert difference <= 2, f"pictures differ by {difference}/255"
