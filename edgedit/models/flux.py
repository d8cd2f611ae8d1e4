"""The FLUX.1 transformer (dev with a guidance embedding, schnell without).

Follows FluxTransformer2DModel of diffusers 0.42 and, before it, black-forest-labs/flux. Tokens are two streams, text
and image: each goes through its own half of the double blocks and both through the single blocks, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from edgedit.models.flux_conditioning import (
    Modulation,
    StepModulations,
    TimeTextEmbedding,
    conditioning_graph,
)
from edgedit.models.flux_inputs import positions, rope_periods, timestep_channels
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
        self.norm_out = Modulation(config.dim, 2)
        self.proj_out = Linear(config.dim, config.patch_size**2 * (config.out_channels or config.in_channels))

    def modulations(self) -> Iterator[tuple[str, Modulation]]:
        """Every modulation with its checkpoint key, in the order in which their vectors stand side by side."""
        for index, double in enumerate(self.transformer_blocks):
            yield f"transformer_blocks.{index}.norm1", double.norm1
            yield f"transformer_blocks.{index}.norm1_context", double.norm1_context
        for index, single in enumerate(self.single_transformer_blocks):
            yield f"single_transformer_blocks.{index}.norm", single.norm
        yield "norm_out", self.norm_out

    def condition(self, b: GraphBuilder, rows: int) -> None:
        """Build the graph of all modulations, see `conditioning_graph`."""
        conditioning_graph(b, self.time_text_embed, self.modulations(), rows)

    def forward(
        self,
        b: GraphBuilder,
        joint: JointSequence,
        img: Tensor,  # [B, S_img, in_channels]
        txt: Tensor,  # [B, S_txt, joint_attention_dim]
        modulations: StepModulations,
    ) -> Tensor:
        img = self.x_embedder(b, joint.strategy.split(b, img, 1))
        txt = self.context_embedder(b, joint.strategy.split(b, txt, 1))
        for double in self.transformer_blocks:
            txt, img = double(b, joint, txt, img, modulations)
        x = b.concat([txt, img], 1)
        for single in self.single_transformer_blocks:
            x = single(b, joint, x, txt.shape[1], modulations)
        img = b.slice(x, 1, txt.shape[1], x.shape[1])
        scale, shift = modulations.of(b, self.norm_out)
        out = self.proj_out(b, modulate(b, img, scale, shift))
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
        """One forward pass: `velocity` with the `modulations` of one step. Arguments as there, timestep is [B]."""
        modulations = self.modulations(np.asarray(timestep)[None], pooled_projections, guidance)
        return self.velocity(hidden_states, encoder_hidden_states, modulations[0], img_ids, txt_ids)

    def modulations(
        self, timesteps: np.ndarray, pooled_projections: np.ndarray, guidance: np.ndarray | None = None
    ) -> np.ndarray:
        """All that steps take of these arguments, as one product over steps x batch: f32 [steps, B, M].

        timesteps           [steps, B] in [0, 1], that is, sigmas
        pooled_projections  [B, pooled_projection_dim] pooled CLIP state
        guidance            [B] guidance scale, for models with guidance_embeds

        The vectors of a step do not depend on which others are computed with them; with ggml's own products
        (kernels "ggml") that holds up to the rounding of a sum's order. Raises ValueError for shapes that do not
        fit each other or the model.
        """
        config, batch = self.config, len(pooled_projections)
        if (guidance is not None) != config.guidance_embeds:
            needs = "needs" if config.guidance_embeds else "takes no"
            raise ValueError(
                f"this FLUX model {needs} guidance (guidance_embeds is {config.guidance_embeds})"
            )
        steps = len(timesteps)
        inputs = {
            "timestep": np.concatenate([timestep_channels(timestep, batch) for timestep in timesteps]),
            "pooled": np.tile(pooled_projections, (steps, 1)),
        }
        if guidance is not None:
            inputs["guidance"] = np.tile(timestep_channels(guidance, batch), (steps, 1))
        rows = steps * batch
        vectors = self.run(("modulations", rows), lambda b: self.network.condition(b, rows), inputs)
        return np.concatenate(list(vectors.values()), axis=1).reshape(steps, batch, -1)

    def velocity(
        self,
        hidden_states: np.ndarray,
        encoder_hidden_states: np.ndarray,
        modulations: np.ndarray,
        img_ids: np.ndarray,
        txt_ids: np.ndarray,
    ) -> np.ndarray:
        """One step; every rank passes the whole inputs and gets the whole output.

        hidden_states          [B, S_img, in_channels] image tokens
        encoder_hidden_states  [B, S_txt, joint_attention_dim] T5 states
        modulations            [B, M] of this step
        img_ids, txt_ids       [S, axes] integer positions

        Returns [B, S_img, out_channels]. Raises ValueError for shapes that do not fit each other or the model.
        """
        axes = len(self.config.axes_dims_rope)
        batch, image_tokens, _ = hidden_states.shape
        text_tokens = encoder_hidden_states.shape[1]
        inputs = {
            "img": hidden_states,
            "txt": encoder_hidden_states,
            "modulations": modulations[:, None],
            "img_positions": positions(img_ids, axes, image_tokens, "img_ids"),
            "txt_positions": positions(txt_ids, axes, text_tokens, "txt_ids"),
        }
        return self._step(batch, image_tokens, text_tokens).run(inputs)["velocity"]

    def prepare(self, batch: int, image_tokens: int, text_tokens: int) -> Schedule:
        """Build, agree on and allocate the graph of a step of these shapes ahead of the first; returns its schedule."""
        return self._step(batch, image_tokens, text_tokens).schedule

    def _step(self, batch: int, image_tokens: int, text_tokens: int) -> Executor:
        parallel = self.context.config
        build = _GraphOfStep(self.config, self.network, parallel, batch, image_tokens, text_tokens)
        return self.executor(("step", batch, image_tokens, text_tokens), build, degree=parallel.ulysses_degree)

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
        """The graph of one step on the rank of `parallel`, from shapes alone: no weights are read."""

        def build(b: GraphBuilder, network: FluxNetwork) -> None:
            _GraphOfStep(config, network, parallel, batch, image_tokens, text_tokens)(b)

        return cls._description(config, build, compute_dtype, parallel)

    @classmethod
    def describe_modulations(
        cls, config: FluxConfig, *, rows: int, compute_dtype: str, parallel: ParallelConfig
    ) -> GraphDescription:
        """The graph behind `modulations` for steps x batch rows, which runs once for a request."""
        return cls._description(
            config, lambda b, network: network.condition(b, rows), compute_dtype, parallel
        )

    @classmethod
    def _description(
        cls,
        config: FluxConfig,
        build: Callable[[GraphBuilder, FluxNetwork], None],
        compute_dtype: str,
        parallel: ParallelConfig,
    ) -> GraphDescription:
        cls.check_parallel(config, parallel)
        network = cls.build_network(config)
        network.name_scopes()
        b = cls.new_builder(parallel, compute_dtype)
        with outline(network, compute_dtype, b.kernels) as weight_nbytes:
            build(b, network)
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
    """Builds the graph of one step for one shape."""

    config: FluxConfig
    network: FluxNetwork
    parallel: ParallelConfig
    batch: int
    image_tokens: int
    text_tokens: int

    def __call__(self, b: GraphBuilder) -> None:
        config, batch = self.config, self.batch
        strategy = strategy_for(self.parallel, b.compute_dtype)
        img = b.input("img", (batch, self.image_tokens, config.in_channels))
        txt = b.input("txt", (batch, self.text_tokens, config.joint_attention_dim))
        modulations = dict(self.network.modulations()).values()
        vectors = b.input("modulations", (batch, 1, sum(m.channels for m in modulations)))
        periods = tuple(
            b.constant(f"periods{a}", rope_periods(d)) for a, d in enumerate(config.axes_dims_rope)
        )

        def rope(name: str, tokens: int) -> Rope:
            return Rope(strategy.split(b, b.input(name, (len(periods), tokens), "i32"), 1), periods)

        ropes = (rope("txt_positions", self.text_tokens), rope("img_positions", self.image_tokens))
        joint = JointSequence(strategy, (self.text_tokens, self.image_tokens), ropes)
        velocity = self.network(b, joint, img, txt, StepModulations(vectors, modulations))
        b.output("velocity", velocity)
