"""The FLUX.1 transformer (dev with a guidance embedding, schnell without).

Follows FluxTransformer2DModel of diffusers 0.42 and, before it, black-forest-labs/flux. Tokens are two streams, text
and image: each goes through its own half of the double blocks and both through the single blocks, side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgedit.config import ParallelConfig, check_heads, check_supported
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.description import GraphDescription
from edgedit.graph.executor import Executor
from edgedit.graph.schedule import Schedule
from edgedit.graph.tensor import Tensor
from edgedit.models.config import known_fields
from edgedit.models.flux_blocks import DoubleBlock, JointSequence, SingleBlock, modulate
from edgedit.models.flux_inputs import TIMESTEP_CHANNELS, positions, rope_periods, timestep_channels
from edgedit.models.layers import Linear
from edgedit.models.model import Model
from edgedit.models.module import Module
from edgedit.sequence.choice import strategy_for
from edgedit.sequence.strategy import Rope
from edgedit.weights.outline import outline

SUPPORTED_AXES = ("cfg", "ulysses")


@dataclass(frozen=True)
class FluxConfig:
    """The fields of diffusers' FluxTransformer2DModel configuration."""

    in_channels: int = 64
    out_channels: int | None = None
    num_layers: int = 19
    num_single_layers: int = 38
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 4096
    pooled_projection_dim: int = 768
    guidance_embeds: bool = False
    axes_dims_rope: tuple[int, ...] = (16, 56, 56)
    patch_size: int = 1

    def __post_init__(self) -> None:
        if sum(self.axes_dims_rope) != self.attention_head_dim or any(
            d % 2 or d < 2 for d in self.axes_dims_rope
        ):
            raise ValueError(
                f"axes_dims_rope {list(self.axes_dims_rope)} must be even and add up to attention_head_dim "
                f"{self.attention_head_dim}"
            )
        if self.patch_size != 1:
            raise ValueError(
                f"patch_size is {self.patch_size}; FLUX patches outside the transformer, so only 1 is legal"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FluxConfig:
        """From the contents of config.json."""
        fields = known_fields(cls, values)
        if "axes_dims_rope" in fields:
            fields["axes_dims_rope"] = tuple(fields["axes_dims_rope"])
        return cls(**fields)

    @property
    def dim(self) -> int:
        return self.num_attention_heads * self.attention_head_dim


class TimestepEmbedding(Module):
    def __init__(self, in_channels: int, dim: int) -> None:
        self.linear_1 = Linear(in_channels, dim)
        self.linear_2 = Linear(dim, dim)

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        return self.linear_2(b, b.silu(self.linear_1(b, x)))


class TimeTextEmbedding(Module):
    """The conditioning vector [B, C] from timestep, guidance (where the model has it) and pooled text."""

    def __init__(self, config: FluxConfig) -> None:
        self.timestep_embedder = TimestepEmbedding(TIMESTEP_CHANNELS, config.dim)
        self.guidance_embedder = (
            TimestepEmbedding(TIMESTEP_CHANNELS, config.dim) if config.guidance_embeds else None
        )
        self.text_embedder = TimestepEmbedding(config.pooled_projection_dim, config.dim)

    def forward(self, b: GraphBuilder, timestep: Tensor, guidance: Tensor | None, pooled: Tensor) -> Tensor:
        vec = self.timestep_embedder(b, timestep)
        if self.guidance_embedder is not None:
            assert guidance is not None
            vec = b.add(vec, self.guidance_embedder(b, guidance))
        return b.add(vec, self.text_embedder(b, pooled))


class OutputNorm(Module):
    def __init__(self, dim: int) -> None:
        self.linear = Linear(dim, 2 * dim)

    def forward(self, b: GraphBuilder, x: Tensor, vec: Tensor) -> Tensor:
        out = self.linear(b, vec)  # [B, 2C]
        scale, shift = b.split(b.reshape(out, (out.shape[0], 1, out.shape[1])), 2, axis=2)
        return modulate(b, x, scale, shift)


class FluxNetwork(Module):
    def __init__(self, config: FluxConfig) -> None:
        self.x_embedder = Linear(config.in_channels, config.dim)
        self.context_embedder = Linear(config.joint_attention_dim, config.dim)
        self.time_text_embed = TimeTextEmbedding(config)
        heads, head_dim = config.num_attention_heads, config.attention_head_dim
        self.transformer_blocks = [DoubleBlock(heads, head_dim) for _ in range(config.num_layers)]
        self.single_transformer_blocks = [
            SingleBlock(heads, head_dim) for _ in range(config.num_single_layers)
        ]
        self.norm_out = OutputNorm(config.dim)
        self.proj_out = Linear(config.dim, config.patch_size**2 * (config.out_channels or config.in_channels))

    def forward(
        self,
        b: GraphBuilder,
        joint: JointSequence,
        img: Tensor,  # [B, S_img, in_channels]
        txt: Tensor,  # [B, S_txt, joint_attention_dim]
        vec: Tensor,  # [B, C]
    ) -> Tensor:
        img = self.x_embedder(b, joint.strategy.split(b, img, 1))
        txt = self.context_embedder(b, joint.strategy.split(b, txt, 1))
        vec = b.silu(vec)
        for double in self.transformer_blocks:
            txt, img = double(b, joint, txt, img, vec)
        x = b.concat([txt, img], 1)
        for single in self.single_transformer_blocks:
            x = single(b, joint, x, txt.shape[1], vec)
        img = b.slice(x, 1, txt.shape[1], x.shape[1])
        out = self.proj_out(b, self.norm_out(b, img, vec))
        return joint.strategy.gather(b, out, joint.lengths[1])


class FluxTransformer(Model):
    """Predicts the velocity of image tokens. Loaded by `from_pretrained`; called like diffusers' class."""

    config_class = FluxConfig
    network: FluxNetwork

    @classmethod
    def build_network(cls, config: FluxConfig) -> FluxNetwork:
        return FluxNetwork(config)

    @classmethod
    def check_parallel(cls, config: FluxConfig, parallel: ParallelConfig) -> None:
        check_supported(parallel, SUPPORTED_AXES, cls.__name__)
        check_heads(config.num_attention_heads, parallel, cls.__name__)

    def __call__(
        self,
        hidden_states: np.ndarray,
        encoder_hidden_states: np.ndarray,
        pooled_projections: np.ndarray,
        timestep: np.ndarray,
        img_ids: np.ndarray,
        txt_ids: np.ndarray,
        guidance: np.ndarray | None = None,
    ) -> np.ndarray:
        """One forward pass; every rank passes the whole inputs and gets the whole output.

        hidden_states          [B, S_img, in_channels] image tokens
        encoder_hidden_states  [B, S_txt, joint_attention_dim] T5 states
        pooled_projections     [B, pooled_projection_dim] pooled CLIP state
        timestep               [B] in [0, 1], that is, sigma
        img_ids, txt_ids       [S, axes] integer positions
        guidance               [B] guidance scale, for models with guidance_embeds

        Returns [B, S_img, out_channels]. Raises ValueError for shapes that do not fit each other or the model.
        """
        config = self.config
        batch, image_tokens, _ = hidden_states.shape
        text_tokens = encoder_hidden_states.shape[1]
        if (guidance is not None) != config.guidance_embeds:
            needs = "needs" if config.guidance_embeds else "takes no"
            raise ValueError(
                f"this FLUX model {needs} guidance (guidance_embeds is {config.guidance_embeds})"
            )
        inputs = {
            "img": hidden_states,
            "txt": encoder_hidden_states,
            "pooled": pooled_projections,
            "timestep": timestep_channels(timestep, batch),
            "img_positions": positions(img_ids, len(config.axes_dims_rope), image_tokens, "img_ids"),
            "txt_positions": positions(txt_ids, len(config.axes_dims_rope), text_tokens, "txt_ids"),
        }
        if guidance is not None:
            inputs["guidance"] = timestep_channels(guidance, batch)
        return self._step(batch, image_tokens, text_tokens).run(inputs)["velocity"]

    def prepare(self, batch: int, image_tokens: int, text_tokens: int) -> Schedule:
        """Build, agree on and allocate the graph of these shapes ahead of the first call; returns its schedule."""
        return self._step(batch, image_tokens, text_tokens).schedule

    def _step(self, batch: int, image_tokens: int, text_tokens: int) -> Executor:
        parallel = self.context.config
        build = _GraphOfStep(self.config, self.network, parallel, batch, image_tokens, text_tokens)
        return self.executor((batch, image_tokens, text_tokens), build, degree=parallel.ulysses_degree)

    @classmethod
    def describe(
        cls,
        config: FluxConfig,
        *,
        batch: int,
        image_tokens: int,
        text_tokens: int,
        compute_dtype: str,
        parallel: ParallelConfig,
    ) -> GraphDescription:
        """The graph of one forward pass on the rank of `parallel`, from shapes alone: no weights are read."""
        cls.check_parallel(config, parallel)
        network = cls.build_network(config)
        network.name_scopes()
        with outline(network, compute_dtype) as weight_nbytes:
            b = GraphBuilder(cls.__name__, ops=parallel.ops)
            _GraphOfStep(config, network, parallel, batch, image_tokens, text_tokens)(b)
            description = GraphDescription(
                name=b.name,
                nodes=tuple(b.nodes),
                collectives=tuple(b.collectives),
                outputs=tuple(t.node for t in b.outputs.values() if t.node is not None),
                input_nbytes=b.leaf_nbytes,
                weight_nbytes=weight_nbytes,
                supports_guidance=config.guidance_embeds,
                fusion_reasons=b.fusion_reasons,
            )
            b.release()
        return description


@dataclass(frozen=True)
class _GraphOfStep:
    """Builds the graph of one forward pass for one shape."""

    config: FluxConfig
    network: FluxNetwork
    parallel: ParallelConfig
    batch: int
    image_tokens: int
    text_tokens: int

    def __call__(self, b: GraphBuilder) -> None:
        config, batch = self.config, self.batch
        strategy = strategy_for(self.parallel)
        img = b.input("img", (batch, self.image_tokens, config.in_channels))
        txt = b.input("txt", (batch, self.text_tokens, config.joint_attention_dim))
        pooled = b.input("pooled", (batch, config.pooled_projection_dim))
        timestep = b.input("timestep", (batch, TIMESTEP_CHANNELS))
        guidance = b.input("guidance", (batch, TIMESTEP_CHANNELS)) if config.guidance_embeds else None
        periods = tuple(
            b.constant(f"periods{a}", rope_periods(d)) for a, d in enumerate(config.axes_dims_rope)
        )

        def rope(name: str, tokens: int) -> Rope:
            return Rope(strategy.split(b, b.input(name, (len(periods), tokens), "i32"), 1), periods)

        ropes = (rope("txt_positions", self.text_tokens), rope("img_positions", self.image_tokens))
        joint = JointSequence(strategy, (self.text_tokens, self.image_tokens), ropes)
        vec = self.network.time_text_embed(b, timestep, guidance, pooled)
        b.output("velocity", self.network(b, joint, img, txt, vec))
