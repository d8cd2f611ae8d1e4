"""Configs, keys and shapes of tiny models, as diffusers and transformers publish them.

They stand here a second time, apart from the package, so that they check it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLIP_VOCAB, CLIP_BOS, CLIP_EOS, T5_VOCAB = 2107, 2105, 2106, 980  # of the embedded model's tokenizers

Shapes = dict[str, tuple[int, ...]]


def linear(name: str, n: int, k: int, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (n, k)} | ({f"{name}.bias": (n,)} if bias else {})


def norm(name: str, n: int) -> Shapes:
    return {f"{name}.weight": (n,), f"{name}.bias": (n,)}


def conv(name: str, n: int, k: int, kernel: int = 3) -> Shapes:
    return {f"{name}.weight": (n, k, kernel, kernel), f"{name}.bias": (n,)}


# text encoders


def clip_config(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["CLIPTextModel"],
        "model_type": "clip_text_model",
        "vocab_size": CLIP_VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 16,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "projection_dim": 32,
        "bos_token_id": CLIP_BOS,
        "eos_token_id": CLIP_EOS,
        "pad_token_id": CLIP_EOS,
    } | changes


def clip_shapes(config: Mapping[str, Any], prefix: str = "text_model.") -> Shapes:
    c, inner = config["hidden_size"], config["intermediate_size"]
    shapes: Shapes = {
        "embeddings.token_embedding.weight": (config["vocab_size"], c),
        "embeddings.position_embedding.weight": (config["max_position_embeddings"], c),
    }
    for i in range(config["num_hidden_layers"]):
        layer = f"encoder.layers.{i}"
        for projection in ("k_proj", "v_proj", "q_proj", "out_proj"):
            shapes |= linear(f"{layer}.self_attn.{projection}", c, c)
        shapes |= norm(f"{layer}.layer_norm1", c) | norm(f"{layer}.layer_norm2", c)
        shapes |= linear(f"{layer}.mlp.fc1", inner, c) | linear(f"{layer}.mlp.fc2", c, inner)
    shapes |= norm("final_layer_norm", c)
    return {prefix + key: shape for key, shape in shapes.items()}


def t5_config(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["T5EncoderModel"],
        "model_type": "t5",
        "vocab_size": T5_VOCAB,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": False,
        "pad_token_id": 0,
        "eos_token_id": 1,
    } | changes


def t5_shapes(config: Mapping[str, Any]) -> Shapes:
    c, inner = config["d_model"], config["num_heads"] * config["d_kv"]
    shapes: Shapes = {"shared.weight": (config["vocab_size"], c)}
    for i in range(config["num_layers"]):
        attention, feed_forward = f"encoder.block.{i}.layer.0", f"encoder.block.{i}.layer.1"
        for projection in "qkv":
            shapes |= linear(f"{attention}.SelfAttention.{projection}", inner, c, bias=False)
        shapes |= linear(f"{attention}.SelfAttention.o", c, inner, bias=False)
        if i == 0:
            name = f"{attention}.SelfAttention.relative_attention_bias.weight"
            shapes[name] = (config["relative_attention_num_buckets"], config["num_heads"])
        gated = config["feed_forward_proj"].startswith("gated-")
        for projection in ("wi_0", "wi_1") if gated else ("wi",):
            shapes |= linear(f"{feed_forward}.DenseReluDense.{projection}", config["d_ff"], c, bias=False)
        shapes |= linear(f"{feed_forward}.DenseReluDense.wo", c, config["d_ff"], bias=False)
        shapes |= {f"{attention}.layer_norm.weight": (c,), f"{feed_forward}.layer_norm.weight": (c,)}
    return shapes | {"encoder.final_layer_norm.weight": (c,)}


# autoencoder


def vae_config(**changes: Any) -> dict[str, Any]:
    blocks = len(changes.get("block_out_channels", (8, 16)))
    return {
        "_class_name": "AutoencoderKL",
        "in_channels": 3,
        "out_channels": 3,
        "block_out_channels": [8, 16],
        "down_block_types": ["DownEncoderBlock2D"] * blocks,
        "up_block_types": ["UpDecoderBlock2D"] * blocks,
        "layers_per_block": 1,
        "latent_channels": 4,
        "norm_num_groups": 4,
        "act_fn": "silu",
        "sample_size": 32,
        "scaling_factor": 0.3611,
        "shift_factor": 0.1159,
        "mid_block_add_attention": True,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    } | changes


def vae_shapes(config: Mapping[str, Any]) -> Shapes:
    channels, layers, latent = (
        config["block_out_channels"],
        config["layers_per_block"],
        config["latent_channels"],
    )
    attention = config["mid_block_add_attention"]
    last = len(channels) - 1

    shapes = conv("encoder.conv_in", channels[0], config["in_channels"])
    for i, c in enumerate(channels):
        for j in range(layers):
            shapes |= _resnet(
                f"encoder.down_blocks.{i}.resnets.{j}", channels[max(i - 1, 0)] if j == 0 else c, c
            )
        if i < last:
            shapes |= conv(f"encoder.down_blocks.{i}.downsamplers.0.conv", c, c)
    shapes |= _mid_block("encoder.mid_block", channels[-1], attention)
    shapes |= norm("encoder.conv_norm_out", channels[-1]) | conv("encoder.conv_out", 2 * latent, channels[-1])

    shapes |= conv("decoder.conv_in", channels[-1], latent) | _mid_block(
        "decoder.mid_block", channels[-1], attention
    )
    ascending = channels[::-1]
    for i, c in enumerate(ascending):
        for j in range(layers + 1):
            shapes |= _resnet(
                f"decoder.up_blocks.{i}.resnets.{j}", ascending[max(i - 1, 0)] if j == 0 else c, c
            )
        if i < last:
            shapes |= conv(f"decoder.up_blocks.{i}.upsamplers.0.conv", c, c)
    shapes |= norm("decoder.conv_norm_out", channels[0]) | conv(
        "decoder.conv_out", config["out_channels"], channels[0]
    )

    if config["use_quant_conv"]:
        shapes |= conv("quant_conv", 2 * latent, 2 * latent, 1)
    if config["use_post_quant_conv"]:
        shapes |= conv("post_quant_conv", latent, latent, 1)
    return shapes


def _resnet(name: str, k: int, n: int) -> Shapes:
    shapes = norm(f"{name}.norm1", k) | conv(f"{name}.conv1", n, k)
    shapes |= norm(f"{name}.norm2", n) | conv(f"{name}.conv2", n, n)
    return shapes | (conv(f"{name}.conv_shortcut", n, k, 1) if k != n else {})


def _mid_block(name: str, c: int, attention: bool) -> Shapes:
    shapes = _resnet(f"{name}.resnets.0", c, c) | _resnet(f"{name}.resnets.1", c, c)
    if attention:
        shapes |= norm(f"{name}.attentions.0.group_norm", c)
        for projection in ("to_q", "to_k", "to_v", "to_out.0"):
            shapes |= linear(f"{name}.attentions.0.{projection}", c, c)
    return shapes


# transformer


def flux_config(**changes: Any) -> dict[str, Any]:
    return {
        "_class_name": "FluxTransformer2DModel",
        "patch_size": 1,
        "in_channels": 16,
        "out_channels": None,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 32,
        "guidance_embeds": False,
        "axes_dims_rope": [4, 6, 6],
    } | changes


def flux_shapes(config: Mapping[str, Any]) -> Shapes:
    head_dim = config["attention_head_dim"]
    c = head_dim * config["num_attention_heads"]
    shapes = linear("x_embedder", c, config["in_channels"])
    shapes |= linear("context_embedder", c, config["joint_attention_dim"])
    embedders = {"timestep_embedder": 256, "text_embedder": config["pooled_projection_dim"]}
    if config["guidance_embeds"]:
        embedders["guidance_embedder"] = 256
    for name, k in embedders.items():
        shapes |= linear(f"time_text_embed.{name}.linear_1", c, k) | linear(
            f"time_text_embed.{name}.linear_2", c, c
        )
    for i in range(config["num_layers"]):
        block = f"transformer_blocks.{i}"
        shapes |= linear(f"{block}.norm1.linear", 6 * c, c) | linear(
            f"{block}.norm1_context.linear", 6 * c, c
        )
        for name in (
            "to_q",
            "to_k",
            "to_v",
            "to_out.0",
            "add_q_proj",
            "add_k_proj",
            "add_v_proj",
            "to_add_out",
        ):
            shapes |= linear(f"{block}.attn.{name}", c, c)
        for name in ("norm_q", "norm_k", "norm_added_q", "norm_added_k"):
            shapes[f"{block}.attn.{name}.weight"] = (head_dim,)
        for name in ("ff", "ff_context"):
            shapes |= linear(f"{block}.{name}.net.0.proj", 4 * c, c) | linear(
                f"{block}.{name}.net.2", c, 4 * c
            )
    for i in range(config["num_single_layers"]):
        block = f"single_transformer_blocks.{i}"
        shapes |= linear(f"{block}.norm.linear", 3 * c, c)
        shapes |= linear(f"{block}.proj_mlp", 4 * c, c) | linear(f"{block}.proj_out", c, 5 * c)
        for name in ("to_q", "to_k", "to_v"):
            shapes |= linear(f"{block}.attn.{name}", c, c)
        for name in ("norm_q", "norm_k"):
            shapes[f"{block}.attn.{name}.weight"] = (head_dim,)
    out_channels = config["out_channels"] or config["in_channels"]
    return shapes | linear("norm_out.linear", 2 * c, c) | linear("proj_out", out_channels, c)
