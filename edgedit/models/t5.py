"""The T5 encoder [Raffel et al. 2020; gated form: Shazeer 2020]: token ids to a sequence of vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgedit.config import ParallelConfig
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.activations import ACTIVATIONS, check_activation
from edgedit.models.config import known_fields
from edgedit.models.layers import Embedding, Linear, RMSNorm, Run
from edgedit.models.model import Model
from edgedit.models.module import Module
from edgedit.models.token_ids import checked_ids

# ggml's products with f16 weights round their input to f16, which ends at 65504; inputs of T5's `wo` go beyond.
F16_HEADROOM = 64.0
MASKED = float(np.finfo(np.float32).min)  # finite, so that a row without any token to attend to is no NaN


@dataclass(frozen=True)
class T5Config:
    """The fields of the published config.json that shape the encoder."""

    vocab_size: int = 32128
    d_model: int = 512
    d_kv: int = 64
    d_ff: int = 2048
    num_layers: int = 6
    num_heads: int = 8
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    layer_norm_epsilon: float = 1e-6
    feed_forward_proj: str = "relu"
    is_decoder: bool = False
    model_type: str = "t5"

    def __post_init__(self) -> None:
        if self.is_decoder or self.model_type not in ("t5", "mt5"):
            raise ValueError(
                f"model_type={self.model_type!r} with is_decoder={self.is_decoder} is not supported; "
                "supported: encoders of model_type 't5' or 'mt5'"
            )
        check_activation("feed_forward_proj", self.activation)
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 4:
            raise ValueError(
                f"relative_attention_max_distance={self.relative_attention_max_distance} must exceed a "
                f"quarter of relative_attention_num_buckets={self.relative_attention_num_buckets}"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> T5Config:
        """From the contents of config.json."""
        return cls(**known_fields(cls, values))

    @property
    def is_gated(self) -> bool:
        return self.feed_forward_proj.startswith("gated-")

    @property
    def activation(self) -> str:
        # "gated-gelu" has always meant the tanh approximation
        return (
            "gelu_new"
            if self.feed_forward_proj == "gated-gelu"
            else self.feed_forward_proj.removeprefix("gated-")
        )


def relative_position_buckets(length: int, num_buckets: int, max_distance: int) -> np.ndarray:
    """Bucket of the distance from each query to each key, i32 [Sq, Sk].

    Half of the buckets are for keys behind the query, half for keys ahead. Of each half, the first half counts
    single steps and the second grows logarithmically up to `max_distance`, beyond which all share the last one
    [Raffel et al. 2020, section 2.1].
    """
    positions = np.arange(length)
    distance = positions[None, :] - positions[:, None]
    half = num_buckets // 2
    exact = half // 2
    steps = np.abs(distance)
    # f32 as in the published code, for the same rounding at the borders of buckets
    ratio = np.log(np.maximum(steps, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(max_distance / exact)
    )
    logarithmic = np.minimum(exact + (ratio * np.float32(half - exact)).astype(np.int64), half - 1)
    buckets = np.where(steps < exact, steps, logarithmic) + half * (distance > 0)
    return buckets.astype(np.int32)


class T5Attention(Module):
    """Scores are not scaled by 1/sqrt(D): the weights were initialised for that."""

    def __init__(self, config: T5Config, has_relative_attention_bias: bool) -> None:
        self.head_dim = config.d_kv
        inner = config.num_heads * config.d_kv
        heads = [Run(inner, config.d_kv)]
        self.q, self.k, self.v = (
            Linear(config.d_model, inner, bias=False, split="columns", runs=heads) for _ in range(3)
        )
        self.o = Linear(inner, config.d_model, bias=False, split="rows", runs=heads)
        if has_relative_attention_bias:
            buckets, per_head = config.relative_attention_num_buckets, [Run(config.num_heads, 1)]
            self.relative_attention_bias = Embedding(
                buckets, config.num_heads, split="columns", runs=per_head
            )

    def forward(self, b: GraphBuilder, x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        heads = (*x.shape[:2], -1, self.head_dim)  # [B, S, H D] -> [B, S, H, D]
        q, k, v = (
            b.reshape(projection(b, x, dtype=b.activations), heads) for projection in (self.q, self.k, self.v)
        )
        attended = b.attention(q, k, v, scale=1.0, mask=bias, dtype=b.activations)
        return self.o(b, attended, residual=residual)


class T5DenseReluDense(Module):
    """wo(act(wi(x))), or wo(act(wi_0(x)) * wi_1(x)) where gated."""

    def __init__(self, config: T5Config) -> None:
        self.activation = ACTIVATIONS[config.activation]
        if config.is_gated:
            self.wi_0 = Linear(config.d_model, config.d_ff, bias=False, split="columns")
            self.wi_1: Linear | None = Linear(config.d_model, config.d_ff, bias=False, split="columns")
        else:
            self.wi = Linear(config.d_model, config.d_ff, bias=False, split="columns")
            self.wi_1 = None
        self.wo = Linear(config.d_ff, config.d_model, bias=False, split="rows")

    def forward(self, b: GraphBuilder, x: Tensor, residual: Tensor) -> Tensor:
        weight = self.wo.weight.on(b)
        rounds_to_f16 = weight.dtype == "f16" and weight.packed is None
        dtype = "f32" if rounds_to_f16 else self.wo.input_type(b)
        if self.wi_1 is not None:
            hidden = self.wi_1(b, x, gate=self.wi_0(b, x, activation=self.activation), dtype=dtype)
        else:
            hidden = self.wi(b, x, activation=self.activation, dtype=dtype)
        if rounds_to_f16:
            return b.add(residual, b.scale(self.wo(b, b.scale(hidden, 1 / F16_HEADROOM)), F16_HEADROOM))
        return self.wo(b, hidden, residual=residual)


class T5SelfAttentionLayer(Module):
    def __init__(self, config: T5Config, has_relative_attention_bias: bool) -> None:
        self.SelfAttention = T5Attention(config, has_relative_attention_bias)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def forward(self, b: GraphBuilder, x: Tensor, bias: Tensor) -> Tensor:
        return self.SelfAttention(b, self.layer_norm(b, x), bias, residual=x)


class T5FeedForwardLayer(Module):
    def __init__(self, config: T5Config) -> None:
        self.DenseReluDense = T5DenseReluDense(config)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        return self.DenseReluDense(b, self.layer_norm(b, x), residual=x)


class T5Block(Module):
    def __init__(self, config: T5Config, has_relative_attention_bias: bool) -> None:
        self.layer: list[Any] = [
            T5SelfAttentionLayer(config, has_relative_attention_bias),
            T5FeedForwardLayer(config),
        ]

    def forward(self, b: GraphBuilder, x: Tensor, bias: Tensor) -> Tensor:
        attention, feed_forward = self.layer
        return feed_forward(b, attention(b, x, bias))


class T5Stack(Module):
    def __init__(self, config: T5Config) -> None:
        self.config = config
        self.block = [T5Block(config, has_relative_attention_bias=i == 0) for i in range(config.num_layers)]
        self.final_layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def forward(self, b: GraphBuilder, x: Tensor, mask: Tensor | None) -> Tensor:
        bias = self._position_bias(b, x.shape[1])
        if mask is not None:
            bias = b.add(b.repeat(b.reshape(bias, (1, *bias.shape)), (x.shape[0], *bias.shape)), mask)
        for block in self.block:
            x = block(b, x, bias)
        return self.final_layer_norm(b, x)

    def _position_bias(self, b: GraphBuilder, length: int) -> Tensor:
        """Added to the scores of every block: f32 [H, Sq, Sk], from the table of the first one."""
        config = self.config
        buckets = relative_position_buckets(
            length, config.relative_attention_num_buckets, config.relative_attention_max_distance
        )
        table = self.block[0].layer[0].SelfAttention.relative_attention_bias
        bias = table(b, b.constant("position_buckets", buckets))  # [Sq, Sk, H]
        return b.contiguous(b.permute(bias, (2, 0, 1)))


class T5EncoderNetwork(Module):
    """ids i32 [B, S], mask f32 [B, 1, 1, S] of 0 and -large -> [B, S, C]."""

    def __init__(self, config: T5Config) -> None:
        self.shared = Embedding(config.vocab_size, config.d_model)
        self.encoder = T5Stack(config)

    def forward(self, b: GraphBuilder, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.encoder(b, self.shared(b, ids), mask)


class T5EncoderModel(Model):
    """Reads prompts. Loaded by `from_pretrained`. The ranks of the overlay `text_encoder` share the weights."""

    config_class = T5Config
    architecture = "t5"
    weight_axis = "text_encoder"

    @classmethod
    def check_parallel(cls, config: T5Config, parallel: ParallelConfig) -> None:
        if parallel.text_encoder_degree > config.num_heads:
            raise ValueError(
                f"text_encoder_degree {parallel.text_encoder_degree} is more than the {config.num_heads} heads of T5; "
                f"legal: 1 to {config.num_heads} (uneven shares are fine)"
            )

    @classmethod
    def build_network(cls, config: T5Config) -> T5EncoderNetwork:
        return T5EncoderNetwork(config)

    @classmethod
    def parameter_name(cls, key: str) -> str | None:
        """The embedding is published under two names; a whole T5 also holds a decoder, which is not needed."""
        if key.startswith("decoder.") or key == "lm_head.weight":
            return None
        return "shared.weight" if key == "encoder.embed_tokens.weight" else key

    def __call__(self, input_ids: np.ndarray, attention_mask: np.ndarray | None = None) -> np.ndarray:
        """Encode token ids [B, S] into [B, S, C].

        attention_mask [B, S] is 1 for tokens to attend to and 0 for padding; without one all are attended to,
        as FLUX does.

        Raises ValueError for ids outside the vocabulary or a mask of another shape.
        """
        ids = checked_ids(input_ids, self.config.vocab_size)
        batch, length = ids.shape
        inputs = {"ids": ids}
        if attention_mask is not None:
            mask = np.asarray(attention_mask)
            if mask.shape != ids.shape:
                raise ValueError(
                    f"attention_mask {list(mask.shape)} must have the shape of input_ids {list(ids.shape)}"
                )
            inputs["mask"] = np.where(mask > 0, 0, MASKED).astype(np.float32).reshape(batch, 1, 1, length)

        def build(b: GraphBuilder) -> None:
            mask = b.input("mask", (batch, 1, 1, length)) if "mask" in inputs else None
            b.output("hidden", self.network(b, b.input("ids", ids.shape, "i32"), mask))

        degree = self.context.group("text_encoder").size
        return self.run((ids.shape, "mask" in inputs), build, inputs, degree)["hidden"]
