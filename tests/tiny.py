"""Random tiny models in diffusers layout, written with numpy alone and equal for equal seeds.

write_flux_pipeline(directory, seed=0, heads=3, head_dim=16, axes=(4, 6, 6), guidance=True)
"""

from __future__ import annotations

import json
import math
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tiny_shapes import (
    clip_config,
    clip_shapes,
    flux_config,
    flux_shapes,
    t5_config,
    t5_shapes,
    vae_config,
    vae_shapes,
)

import edgedit
from edgedit.dtypes import f32_to_bf16

EMBEDDED = Path(edgedit.__file__).parent / "embedded" / "pipeline"

# values and files


def random_tensors(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """f32 values that keep activations near unit size; each depends on seed and key only."""
    return {key: _random(key, shape, seed) for key, shape in shapes.items()}


def _random(key: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    values = np.random.default_rng([seed, zlib.crc32(key.encode())]).standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        return np.float32(key.endswith("weight")) + np.float32(0.1) * values
    embedding = "embed" in key.split(".")[-2] or key.startswith("shared") or "attention_bias" in key
    fan_in = 1 if embedding else math.prod(shape[1:])
    return values / np.float32(math.sqrt(fan_in))


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], dtype: str = "F32") -> None:
    """Store f32 arrays as F32, F16 or BF16."""
    convert = {"F32": lambda x: x, "F16": lambda x: x.astype(np.float16), "BF16": f32_to_bf16}[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = []
    position = 0
    for key, values in tensors.items():
        stored = np.ascontiguousarray(convert(values))
        header[key] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [position, position + stored.nbytes],
        }
        position += stored.nbytes
        data.append(stored.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def write_component(
    directory: Path,
    config: dict[str, Any],
    tensors: Mapping[str, np.ndarray],
    stem: str,
    dtype: str = "F32",
    shards: int = 1,
) -> None:
    """config.json and the weights, in one file or in shards with an index."""
    write_json(directory / "config.json", config)
    if shards == 1:
        write_safetensors(directory / f"{stem}.safetensors", tensors, dtype)
        return
    keys = list(tensors)
    weight_map = {}
    for shard in range(shards):
        name = f"{stem}-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {key: tensors[key] for key in keys[shard::shards]}
        write_safetensors(directory / name, part, dtype)
        weight_map |= dict.fromkeys(part, name)
    write_json(directory / f"{stem}.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2))


# components


def write_clip(
    directory: Path, seed: int = 0, dtype: str = "F32", prefix: str = "text_model.", **changes: Any
) -> dict[str, Any]:
    """A CLIP text encoder; returns its config, as the other writers do."""
    config = clip_config(**changes)
    write_component(directory, config, random_tensors(clip_shapes(config, prefix), seed), "model", dtype)
    return config


def write_t5(
    directory: Path, seed: int = 0, dtype: str = "F32", shards: int = 1, **changes: Any
) -> dict[str, Any]:
    config = t5_config(**changes)
    write_component(directory, config, random_tensors(t5_shapes(config), seed), "model", dtype, shards)
    return config


def write_vae(directory: Path, seed: int = 0, dtype: str = "F32", **changes: Any) -> dict[str, Any]:
    config = vae_config(**changes)
    write_component(
        directory, config, random_tensors(vae_shapes(config), seed), "diffusion_pytorch_model", dtype
    )
    return config


def write_flux_transformer(
    directory: Path,
    seed: int = 0,
    dtype: str = "F32",
    shards: int = 1,
    modulation_bias: float = 0.1,
    **changes: Any,
) -> dict[str, Any]:
    """`modulation_bias` is the deviation of the biases behind shifts, scales and gates: with large ones a block counts
    for as much as what it is added to, and so do its errors."""
    config = flux_config(**changes)
    tensors = random_tensors(flux_shapes(config), seed)
    for key in tensors:
        if "norm" in key and key.endswith("linear.bias"):
            tensors[key] *= np.float32(modulation_bias / 0.1)
    write_component(directory, config, tensors, "diffusion_pytorch_model", dtype, shards)
    return config


def write_scheduler(directory: Path, **changes: Any) -> None:
    config = {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "num_train_timesteps": 1000,
        "shift": 1.0,
        "use_dynamic_shifting": False,
        "base_shift": 0.5,
        "max_shift": 1.15,
        "base_image_seq_len": 256,
        "max_image_seq_len": 4096,
    }
    write_json(directory / "scheduler_config.json", config | changes)


def copy_tokenizer(name: str, directory: Path, max_length: int) -> None:
    """One of the embedded model's tokenizers ("tokenizer" or "tokenizer_2") with another length limit."""
    shutil.copytree(EMBEDDED / name, directory)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    write_json(directory / "tokenizer_config.json", config | {"model_max_length": max_length})


# pipeline


def write_flux_pipeline(
    directory: str | Path,
    seed: int = 0,
    *,
    heads: int = 4,
    head_dim: int = 16,
    axes: tuple[int, ...] = (4, 6, 6),
    num_layers: int = 2,
    num_single_layers: int = 2,
    guidance: bool = False,
    dtype: str = "F32",
    shards: int = 1,
    clip_length: int = 16,
    t5_length: int = 16,
    transformer: Mapping[str, Any] | None = None,
    text_encoder: Mapping[str, Any] | None = None,
    text_encoder_2: Mapping[str, Any] | None = None,
    vae: Mapping[str, Any] | None = None,
    scheduler: Mapping[str, Any] | None = None,
) -> Path:
    """A whole random FLUX pipeline that diffusers loads too.

    With the default VAE (two blocks) a latent is half the picture's size, so an image token covers 4 x 4 pixels.

    Args:
        clip_length, t5_length: limits of the two tokenizers, in tokens.
        shards: files of the transformer and of T5.
        transformer, text_encoder, text_encoder_2, vae, scheduler: further changes to a component's config.
    """
    directory = Path(directory)
    clip = write_clip(
        directory / "text_encoder", seed, dtype, max_position_embeddings=clip_length, **(text_encoder or {})
    )
    t5 = write_t5(directory / "text_encoder_2", seed, dtype, shards, **(text_encoder_2 or {}))
    autoencoder = write_vae(directory / "vae", seed, dtype, **(vae or {}))
    denoiser = {
        "num_attention_heads": heads,
        "attention_head_dim": head_dim,
        "axes_dims_rope": list(axes),
        "num_layers": num_layers,
        "num_single_layers": num_single_layers,
        "guidance_embeds": guidance,
        "in_channels": 4 * autoencoder["latent_channels"],
        "joint_attention_dim": t5["d_model"],
        "pooled_projection_dim": clip["hidden_size"],
    }
    write_flux_transformer(
        directory / "transformer", seed, dtype, shards, **(denoiser | dict(transformer or {}))
    )
    write_scheduler(directory / "scheduler", **(scheduler or {}))
    copy_tokenizer("tokenizer", directory / "tokenizer", clip_length)
    copy_tokenizer("tokenizer_2", directory / "tokenizer_2", t5_length)
    shutil.copy(EMBEDDED / "model_index.json", directory / "model_index.json")
    return directory


def networks_of(directory: Path) -> dict[str, Path]:
    """Directories of a pipeline's components by their names."""
    return {path.name: path for path in directory.iterdir() if path.is_dir()}
