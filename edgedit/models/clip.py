"""The CLIP text encoder [Radford et al. 2021]: token ids to a sequence and one pooled vector per prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.activations import ACTIVATIONS, check_activation
from edgedit.models.config import known_fields
from edgedit.models.layers import Embedding, LayerNorm, Linear
from edgedit.models.model import Model
from edgedit.models.module import Module
from edgedit.models.token_ids import checked_ids
from edgedit.weights.sources import TensorSource
from edgedit.weights.views import without

PROJECTION = "text_projection.weight"
LEGACY_EOS = 2  # configs from before eos_token_id meant anything; then eos is the highest id of a prompt


@dataclass(frozen=True)
class CLIPTextConfig:
    """The fields of the published config.json that shape the network."""

    vocab_size: int = 49408
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    max_position_embeddings: int = 77
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    eos_token_id: int = 49407
    projection_dim: int = 512  # of models with a projection

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}"
            )
        check_activation("hidden_act", self.hidden_act)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CLIPTextConfig:
        """From the contents of config.json, of a text model or of a whole CLIP model."""
        return cls(**known_fields(cls, values.get("text_config") or values))


class CLIPAttention(Module):
    """Each token attends to itself and the tokens before it."""

    def __init__(self, config: CLIPTextConfig) -> None:
        self.num_heads = config.num_attention_heads
        channels = config.hidden_size
        self.k_proj = Linear(channels, channels)
        self.v_proj = Linear(channels, channels)
        self.q_proj = Linear(channels, channels)
        self.out_proj = Linear(channels, channels)

    def forward(self, b: GraphBuilder, x: Tensor, mask: Tensor, residual: Tensor) -> Tensor:
        batch, length, channels = x.shape
        # [B, S, C] -> [B, S, H, D]
        heads = (batch, length, self.num_heads, channels // self.num_heads)
        q, k, v = (
            b.reshape(projection(b, x, dtype=b.activations), heads)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(b, b.attention(q, k, v, mask=mask, dtype=b.activations), residual=residual)


class CLIPMLP(Module):
    def __init__(self, config: CLIPTextConfig) -> None:
        self.activation = ACTIVATIONS[config.hidden_act]
        self.fc1 = Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, b: GraphBuilder, x: Tensor, residual: Tensor) -> Tensor:
        hidden = self.fc1(b, x, activation=self.activation, dtype=self.fc2.input_type(b))
        return self.fc2(b, hidden, residual=residual)


class CLIPLayer(Module):
    def __init__(self, config: CLIPTextConfig) -> None:
        self.self_attn = CLIPAttention(config)
        self.layer_norm1 = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.mlp = CLIPMLP(config)
        self.layer_norm2 = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, b: GraphBuilder, x: Tensor, mask: Tensor) -> Tensor:
        x = self.self_attn(b, self.layer_norm1(b, x), mask, residual=x)
        return self.mlp(b, self.layer_norm2(b, x), residual=x)


class CLIPEmbeddings(Module):
    def __init__(self, config: CLIPTextConfig) -> None:
        self.token_embedding = Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, b: GraphBuilder, ids: Tensor) -> Tensor:
        positions = b.slice(self.position_embedding.weight.on(b), 0, 0, ids.shape[1])
        return b.add(self.token_embedding(b, ids), positions)


class CLIPEncoder(Module):
    def __init__(self, config: CLIPTextConfig) -> None:
        self.layers = [CLIPLayer(config) for _ in range(config.num_hidden_layers)]

    def forward(self, b: GraphBuilder, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The states before and after the last layer."""
        before = x
        for layer in self.layers:
            before, x = x, layer(b, x, mask)
        return before, x


class CLIPTransformer(Module):
    """What text encoders with and without a projection have in common."""

    def __init__(self, config: CLIPTextConfig) -> None:
        self.embeddings = CLIPEmbeddings(config)
        self.encoder = CLIPEncoder(config)
        self.final_layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def encode(self, b: GraphBuilder, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids i32 [B, S] -> the states before and after the last layer, [B, S, C] each."""
        length = ids.shape[1]
        mask = b.constant("causal_mask", np.triu(np.full((length, length), -np.inf, np.float16), 1))
        return self.encoder(b, self.embeddings(b, ids), mask)


class CLIPTextNetwork(CLIPTransformer):
    """ids i32 [B, S] -> [B, S, C]."""

    def forward(self, b: GraphBuilder, ids: Tensor) -> Tensor:
        return self.final_layer_norm(b, self.encode(b, ids)[1])


class CLIPTextNetworkWithProjection(CLIPTransformer):
    """ids i32 [B, S] and ends i32 [B], numbers of rows of [B * S] -> states before the last layer [B, S, C], and the
    projected rows [B, P]."""

    def __init__(self, config: CLIPTextConfig) -> None:
        super().__init__(config)
        self.text_projection = Linear(config.hidden_size, config.projection_dim, bias=False)

    def forward(self, b: GraphBuilder, ids: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
        before, after = self.encode(b, ids)
        rows = b.embedding(b.reshape(after, (-1, after.shape[2])), ends)
        return before, self.text_projection(b, self.final_layer_norm(b, rows))


class CLIPTextModel(Model):
    """Reads prompts. Loaded by `from_pretrained`."""

    config_class = CLIPTextConfig
    architecture = "clip"

    @classmethod
    def build_network(cls, config: CLIPTextConfig) -> CLIPTransformer:
        return CLIPTextNetwork(config)

    @classmethod
    def completed(cls, source: TensorSource, config: CLIPTextConfig) -> TensorSource:
        """Files are made for several families; some do not project."""
        return without(source, [PROJECTION])

    @classmethod
    def parameter_name(cls, key: str) -> str | None:
        """Keys are published with and without `text_model.`; older files hold position numbers as a buffer."""
        return None if key.endswith("embeddings.position_ids") else key.removeprefix("text_model.")

    def __call__(self, input_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Encode token ids [B, S], S at most max_position_embeddings.

        Returns the last hidden state [B, S, C] after the final norm, and each prompt's vector at its eos [B, C].
        Raises ValueError for ids outside the vocabulary or too many of them.
        """
        ids = self._checked(input_ids)

        def build(b: GraphBuilder) -> None:
            b.output("hidden", self.network(b, b.input("ids", ids.shape, "i32")))

        hidden = self.run(ids.shape, build, {"ids": ids})["hidden"]
        return hidden, hidden[np.arange(len(ids)), pooled_positions(ids, self.config.eos_token_id)]

    def _checked(self, input_ids: np.ndarray) -> np.ndarray:
        config: CLIPTextConfig = self.config
        ids = checked_ids(input_ids, config.vocab_size)
        if ids.shape[1] > config.max_position_embeddings:
            raise ValueError(
                f"{ids.shape[1]} tokens exceed max_position_embeddings={config.max_position_embeddings}"
            )
        return ids


class CLIPTextModelWithProjection(CLIPTextModel):
    """Reads prompts for Stable Diffusion 3. Loaded by `from_pretrained`."""

    @classmethod
    def completed(cls, source: TensorSource, config: CLIPTextConfig) -> TensorSource:
        """Files without a projection mean that there is none: that it changes nothing."""
        if PROJECTION in source or config.projection_dim != config.hidden_size:
            return source
        identity = np.eye(config.hidden_size, dtype=np.float32)
        return without(source, [], made={PROJECTION: identity})

    @classmethod
    def build_network(cls, config: CLIPTextConfig) -> CLIPTransformer:
        return CLIPTextNetworkWithProjection(config)

    def __call__(self, input_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Encode token ids [B, S], S at most max_position_embeddings.

        Returns the hidden states before the last layer [B, S, C], and each prompt's vector at its eos after all
        layers, the final norm and the projection [B, projection_dim].
        Raises ValueError for ids outside the vocabulary or too many of them.
        """
        ids = self._checked(input_ids)
        batch, length = ids.shape
        ends = np.arange(batch) * length + pooled_positions(ids, self.config.eos_token_id)

        def build(b: GraphBuilder) -> None:
            states, projected = self.network(
                b, b.input("ids", ids.shape, "i32"), b.input("ends", (batch,), "i32")
            )
            b.output("states", states)
            b.output("projected", projected)

        outputs = self.run(ids.shape, build, {"ids": ids, "ends": ends.astype(np.int32)})
        return outputs["states"], outputs["projected"]


def pooled_positions(ids: np.ndarray, eos_token_id: int) -> np.ndarray:
    """Where each prompt's pooled vector is read: its first eos, or 0 where it has none. ids [B, S] -> [B]."""
    return (ids if eos_token_id == LEGACY_EOS else ids == eos_token_id).argmax(axis=1)
