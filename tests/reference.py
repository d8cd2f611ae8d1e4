"""CLIP, T5 and the VAE once more, in plain float64 numpy straight from the papers: an oracle without PyTorch.

`w` is a checkpoint's tensors by published key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Weights = Mapping[str, np.ndarray]


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf)(x)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
}


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def linear(x: np.ndarray, w: Weights, name: str) -> np.ndarray:
    y = x @ w[f"{name}.weight"].T.astype(np.float64)
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def layer_norm(x: np.ndarray, w: Weights, name: str, eps: float) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return normed * w[f"{name}.weight"] + w[f"{name}.bias"]


def rms_norm(x: np.ndarray, w: Weights, name: str, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * w[f"{name}.weight"]


def split_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """[B, S, H D] -> [B, H, S, D]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, bias: np.ndarray | float = 0.0
) -> np.ndarray:
    """[B, H, S, D] each -> [B, S, H D]."""
    out = softmax(q @ k.swapaxes(-1, -2) * scale + bias) @ v
    return out.swapaxes(1, 2).reshape(q.shape[0], q.shape[2], -1)


def clip_text(
    w: Weights, config: Mapping[str, Any], ids: np.ndarray, prefix: str = "text_model."
) -> np.ndarray:
    """ids [B, S] -> last hidden state [B, S, C]."""
    x = clip_layers(w, config, ids, config["num_hidden_layers"], prefix)
    return layer_norm(x, w, f"{prefix}final_layer_norm", config["layer_norm_eps"])


def clip_layers(
    w: Weights, config: Mapping[str, Any], ids: np.ndarray, num_layers: int, prefix: str = "text_model."
) -> np.ndarray:
    """ids [B, S] -> the states after so many layers [B, S, C]."""
    w = {key.removeprefix(prefix): values for key, values in w.items()}
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
    length = ids.shape[1]
    act = ACTIVATIONS[config["hidden_act"]]
    causal = np.triu(np.full((length, length), -np.inf), 1)
    x = w["embeddings.token_embedding.weight"][ids] + w["embeddings.position_embedding.weight"][:length]
    x = x.astype(np.float64)
    for i in range(num_layers):
        name = f"encoder.layers.{i}"
        normed = layer_norm(x, w, f"{name}.layer_norm1", eps)
        q, k, v = (split_heads(linear(normed, w, f"{name}.self_attn.{p}_proj"), heads) for p in "qkv")
        attended = attention(q, k, v, q.shape[-1] ** -0.5, causal)
        x = x + linear(attended, w, f"{name}.self_attn.out_proj")
        normed = layer_norm(x, w, f"{name}.layer_norm2", eps)
        x = x + linear(act(linear(normed, w, f"{name}.mlp.fc1")), w, f"{name}.mlp.fc2")
    return x


def t5_bucket(distance: int, num_buckets: int, max_distance: int) -> int:
    """Bucket of key position - query position, in scalar arithmetic."""
    half = num_buckets // 2
    exact = half // 2
    steps = abs(distance)
    if steps >= exact:
        grown = math.log(steps / exact) / math.log(max_distance / exact) * (half - exact)
        steps = min(exact + int(grown + 1e-6), half - 1)
    return steps + (half if distance > 0 else 0)


def t5_encoder(
    w: Weights, config: Mapping[str, Any], ids: np.ndarray, attention_mask: np.ndarray | None = None
) -> np.ndarray:
    """ids [B, S], attention_mask [B, S] of 0 and 1 -> [B, S, C]."""
    heads, eps = config["num_heads"], config["layer_norm_epsilon"]
    length = ids.shape[1]
    kind = config["feed_forward_proj"]
    act = ACTIVATIONS["gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")]
    buckets = [
        [
            t5_bucket(
                key - query,
                config["relative_attention_num_buckets"],
                config["relative_attention_max_distance"],
            )
            for key in range(length)
        ]
        for query in range(length)
    ]
    table = w["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    bias = table[np.array(buckets)].transpose(2, 0, 1)[None].astype(np.float64)
    if attention_mask is not None:
        bias = bias + np.where(attention_mask[:, None, None, :] > 0, 0, -1e30)
    x = w["shared.weight"][ids].astype(np.float64)
    for i in range(config["num_layers"]):
        name = f"encoder.block.{i}.layer.0"
        normed = rms_norm(x, w, f"{name}.layer_norm", eps)
        q, k, v = (split_heads(linear(normed, w, f"{name}.SelfAttention.{p}"), heads) for p in "qkv")
        x = x + linear(attention(q, k, v, 1.0, bias), w, f"{name}.SelfAttention.o")
        name = f"encoder.block.{i}.layer.1"
        normed = rms_norm(x, w, f"{name}.layer_norm", eps)
        name += ".DenseReluDense"
        if kind.startswith("gated-"):
            hidden = act(linear(normed, w, f"{name}.wi_0")) * linear(normed, w, f"{name}.wi_1")
        else:
            hidden = act(linear(normed, w, f"{name}.wi"))
        x = x + linear(hidden, w, f"{name}.wo")
    return rms_norm(x, w, "encoder.final_layer_norm", eps)


def conv2d(x: np.ndarray, w: Weights, name: str, stride: int = 1, padding: int = 0) -> np.ndarray:
    weight = w[f"{name}.weight"].astype(np.float64)
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = sliding_window_view(x, weight.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("bihwyx,oiyx->bohw", windows, weight, optimize=True) + w[f"{name}.bias"][:, None, None]


def group_norm(x: np.ndarray, w: Weights, name: str, groups: int) -> np.ndarray:
    grouped = x.reshape(x.shape[0], groups, -1)
    centred = grouped - grouped.mean(axis=-1, keepdims=True)
    normed = (centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)).reshape(x.shape)
    return normed * w[f"{name}.weight"][:, None, None] + w[f"{name}.bias"][:, None, None]


def _resnet(x: np.ndarray, w: Weights, name: str, config: Mapping[str, Any]) -> np.ndarray:
    act, groups = ACTIVATIONS[config["act_fn"]], config["norm_num_groups"]
    hidden = conv2d(act(group_norm(x, w, f"{name}.norm1", groups)), w, f"{name}.conv1", padding=1)
    hidden = conv2d(act(group_norm(hidden, w, f"{name}.norm2", groups)), w, f"{name}.conv2", padding=1)
    return hidden + (conv2d(x, w, f"{name}.conv_shortcut") if f"{name}.conv_shortcut.weight" in w else x)


def _mid_block(x: np.ndarray, w: Weights, name: str, config: Mapping[str, Any]) -> np.ndarray:
    x = _resnet(x, w, f"{name}.resnets.0", config)
    if config["mid_block_add_attention"]:
        attn = f"{name}.attentions.0"
        normed = group_norm(x, w, f"{attn}.group_norm", config["norm_num_groups"])
        tokens = normed.reshape(*x.shape[:2], -1).swapaxes(1, 2)
        q, k, v = (linear(tokens, w, f"{attn}.to_{p}")[:, None] for p in "qkv")
        out = linear(attention(q, k, v, x.shape[1] ** -0.5), w, f"{attn}.to_out.0")
        x = x + out.swapaxes(1, 2).reshape(x.shape)
    return _resnet(x, w, f"{name}.resnets.1", config)


def _out(x: np.ndarray, w: Weights, name: str, config: Mapping[str, Any]) -> np.ndarray:
    x = ACTIVATIONS["silu"](group_norm(x, w, f"{name}.conv_norm_out", config["norm_num_groups"]))
    return conv2d(x, w, f"{name}.conv_out", padding=1)


def vae_encode(w: Weights, config: Mapping[str, Any], pixels: np.ndarray) -> np.ndarray:
    """[B, 3, H, W] -> mean and log variance [B, 2 C, h, w]."""
    x = conv2d(pixels, w, "encoder.conv_in", padding=1)
    for i in range(len(config["block_out_channels"])):
        block = f"encoder.down_blocks.{i}"
        for j in range(config["layers_per_block"]):
            x = _resnet(x, w, f"{block}.resnets.{j}", config)
        if i < len(config["block_out_channels"]) - 1:
            x = np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)))
            x = conv2d(x, w, f"{block}.downsamplers.0.conv", stride=2)
    x = _out(_mid_block(x, w, "encoder.mid_block", config), w, "encoder", config)
    return conv2d(x, w, "quant_conv") if config["use_quant_conv"] else x


def vae_decode(w: Weights, config: Mapping[str, Any], latents: np.ndarray) -> np.ndarray:
    """[B, C, h, w] -> [B, 3, H, W]."""
    x = conv2d(latents, w, "post_quant_conv") if config["use_post_quant_conv"] else latents
    x = _mid_block(conv2d(x, w, "decoder.conv_in", padding=1), w, "decoder.mid_block", config)
    for i in range(len(config["block_out_channels"])):
        block = f"decoder.up_blocks.{i}"
        for j in range(config["layers_per_block"] + 1):
            x = _resnet(x, w, f"{block}.resnets.{j}", config)
        if i < len(config["block_out_channels"]) - 1:
            x = conv2d(x.repeat(2, axis=2).repeat(2, axis=3), w, f"{block}.upsamplers.0.conv", padding=1)
    return _out(x, w, "decoder", config)
