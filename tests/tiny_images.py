"""Random FLUX models that read a picture, and pictures for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tiny import write_flux_pipeline, write_json

LATENT_CHANNELS, SCALE = 4, 2  # of the tiny autoencoder
FILL_CHANNELS = 4 * (2 * LATENT_CHANNELS + SCALE**2)


def write_kontext_pipeline(directory: Path, seed: int = 0, **options: Any) -> Path:
    write_flux_pipeline(directory, seed, **options)
    index = json.loads((directory / "model_index.json").read_text())
    write_json(directory / "model_index.json", {**index, "_class_name": "FluxKontextPipeline"})
    return directory


def write_fill_pipeline(directory: Path, seed: int = 0, **options: Any) -> Path:
    channels = {"in_channels": FILL_CHANNELS, "out_channels": 4 * LATENT_CHANNELS}
    return write_flux_pipeline(directory, seed, transformer=channels, **options)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A smooth random picture."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def mask(width: int, height: int) -> Image.Image:
    """White in an off-centre rectangle, with soft edges."""
    pixels = np.zeros((height, width), np.uint8)
    pixels[height // 4 : height // 2 + 1, width // 3 :] = 255
    pixels[height // 4, width // 3 :] = 130
    return Image.fromarray(pixels)
