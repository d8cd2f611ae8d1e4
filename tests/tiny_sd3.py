"""Random tiny Stable Diffusion 3 models in diffusers layout, with their keys and shapes as diffusers publishes them.

write_sd3_pipeline(directory, seed=0, heads=3, dual=(0,), qk_norm="rms_norm", with_t5=False)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiny import (
    copy_tokenizer,
    random_tensors,
    write_component,
    write_json,
    write_scheduler,
    write_t5,
    write_vae,
)
from tiny_shapes import Shapes, clip_config, clip_shapes, conv, linear

PAD = "!"  # of CLIP-G's tokenizer


def sd3_config(**changes: Any) -> dict[str, Any]:
    heads, head_dim = changes.get("num_attention_heads", 4), changes.get("attention_head_dim", 16)
    return {
        "_class_name": "SD3Transformer2DModel",
        "sample_size": 16,
        "patch_size": 2,
        "in_channels": 4,
        "num_layers": 3,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 80,
        "caption_projection_dim": heads * head_dim,
        "pooled_projection_dim": 40,
        "out_channels": 4,
        "pos_embed_max_size": 12,
        "dual_attention_layers": [],
        "qk_norm": None,
    } | changes


def sd3_shapes(config: Mapping[str, Any]) -> Shapes:
    head_dim, last = config["attention_head_dim"], config["num_layers"] - 1
    c = head_dim * config["num_attention_heads"]
    patch = config["patch_size"]
    shapes = conv("pos_embed.proj", c, config["in_channels"], patch)
    shapes["pos_embed.pos_embed"] = (1, config["pos_embed_max_size"] ** 2, c)
    for name, k in {"timestep_embedder": 256, "text_embedder": config["pooled_projection_dim"]}.items():
        shapes |= linear(f"time_text_embed.{name}.linear_1", c, k)
        shapes |= linear(f"time_text_embed.{name}.linear_2", c, c)
    shapes |= linear("context_embedder", c, config["joint_attention_dim"])
    for i in range(config["num_layers"]):
        block, dual = f"transformer_blocks.{i}", i in config["dual_attention_layers"]
        shapes |= linear(f"{block}.norm1.linear", (9 if dual else 6) * c, c)
        shapes |= linear(f"{block}.norm1_context.linear", (2 if i == last else 6) * c, c)
        of_joint = ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj"]
        layers = [f"attn.{name}" for name in of_joint + (["to_add_out"] if i < last else [])]
        norms = [f"attn.{name}" for name in ("norm_q", "norm_k", "norm_added_q", "norm_added_k")]
        if dual:
            layers += [f"attn2.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0")]
            norms += ["attn2.norm_q", "attn2.norm_k"]
        for name in layers:
            shapes |= linear(f"{block}.{name}", c, c)
        if config["qk_norm"] is not None:
            shapes |= {f"{block}.{name}.weight": (head_dim,) for name in norms}
        for name in ("ff", "ff_context") if i < last else ("ff",):
            shapes |= linear(f"{block}.{name}.net.0.proj", 4 * c, c)
            shapes |= linear(f"{block}.{name}.net.2", c, 4 * c)
    shapes |= linear("norm_out.linear", 2 * c, c)
    return shapes | linear("proj_out", patch**2 * (config["out_channels"] or config["in_channels"]), c)


def write_sd3_transformer(
    directory: Path, seed: int = 0, dtype: str = "F32", shards: int = 1, **changes: Any
) -> dict[str, Any]:
    config = sd3_config(**changes)
    write_component(
        directory, config, random_tensors(sd3_shapes(config), seed), "diffusion_pytorch_model", dtype, shards
    )
    return config


def write_clip_with_projection(directory: Path, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A CLIP text encoder with its projection; returns its config."""
    config = clip_config(**{"architectures": ["CLIPTextModelWithProjection"], **changes})
    shapes = clip_shapes(config) | linear(
        "text_projection", config["projection_dim"], config["hidden_size"], bias=False
    )
    write_component(directory, config, random_tensors(shapes, seed), "model")
    return config


def write_sd3_pipeline(
    directory: str | Path,
    seed: int = 0,
    *,
    heads: int = 4,
    head_dim: int = 16,
    num_layers: int = 3,
    dual: Sequence[int] = (),
    qk_norm: str | None = None,
    with_t5: bool = True,
    clip_length: int = 16,
    transformer: Mapping[str, Any] | None = None,
    text_encoder: Mapping[str, Any] | None = None,
    text_encoder_2: Mapping[str, Any] | None = None,
    vae: Mapping[str, Any] | None = None,
    scheduler: Mapping[str, Any] | None = None,
) -> Path:
    """A whole random Stable Diffusion 3 pipeline that diffusers loads too.

    With the VAE of two blocks a latent is half the picture's size, so an image token covers 4 x 4 pixels.
    """
    directory = Path(directory)
    clip = {"max_position_embeddings": clip_length, "projection_dim": 16} | dict(text_encoder or {})
    clip_g = {
        "hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 3, "hidden_act": "gelu",
        "max_position_embeddings": clip_length, "projection_dim": 24,
    } | dict(text_encoder_2 or {})  # fmt: skip
    clips = [
        write_clip_with_projection(directory / "text_encoder", seed, **clip),
        write_clip_with_projection(directory / "text_encoder_2", seed + 1, **clip_g),
    ]
    autoencoder = write_vae(directory / "vae", seed, **(vae or {}))
    denoiser = {
        "num_attention_heads": heads,
        "attention_head_dim": head_dim,
        "num_layers": num_layers,
        "dual_attention_layers": list(dual),
        "qk_norm": qk_norm,
        "in_channels": autoencoder["latent_channels"],
        "out_channels": autoencoder["latent_channels"],
        "pooled_projection_dim": sum(config["projection_dim"] for config in clips),
    }
    written = write_sd3_transformer(directory / "transformer", seed, **(denoiser | dict(transformer or {})))
    write_scheduler(directory / "scheduler", **({"shift": 3.0} | dict(scheduler or {})))
    for name in ("tokenizer", "tokenizer_2"):
        copy_tokenizer("tokenizer", directory / name, clip_length)
    path = directory / "tokenizer_2" / "tokenizer_config.json"
    write_json(path, json.loads(path.read_text()) | {"pad_token": PAD})
    kinds = {
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
        "text_encoder_3": [None, None],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"],
        "tokenizer_3": [None, None],
        "transformer": ["diffusers", "SD3Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    if with_t5:
        write_t5(directory / "text_encoder_3", seed, d_model=written["joint_attention_dim"])
        copy_tokenizer("tokenizer_2", directory / "tokenizer_3", 77)
        kinds |= {
            "text_encoder_3": ["transformers", "T5EncoderModel"],
            "tokenizer_3": ["transformers", "T5Tokenizer"],
        }
    write_json(
        directory / "model_index.json",
        {"_class_name": "StableDiffusion3Pipeline", "_diffusers_version": "0.42.1", **kinds},
    )
    return directory
