"""The FLUX.1 transformer (dev with a guidance embedding, schnell without).

Follows FluxTransformer2DModel of diffusers 0.42 and, before it, black-forest-labs/flux. Tokens are two streams, text
and image: each goes through its own half of the double blocks and both through the single blocks, side by side.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.conditioning import Modulation, StepModulations, TimeTextEmbedding
from edgedit.models.diffusion_transformer import DiffusionNetwork, DiffusionTransformer, StepShape
from edgedit.models.flux_blocks import DoubleBlock, SingleBlock
from edgedit.models.flux_config import FluxConfig
from edgedit.models.flux_inputs import positions, rope_periods
from edgedit.models.joint_blocks import JointSequence, modulate
from edgedit.models.layers import Linear
from edgedit.models.module import Module
from edgedit.models.weight_residency import WeightsAhead
from edgedit.sequence.strategy import AttentionStrategy, Rope


class FluxNetwork(DiffusionNetwork):
    def __init__(self, config: FluxConfig) -> None:
        self.config = config
        self.x_embedder = Linear(config.in_channels, config.dim)
        self.context_embedder = Linear(config.joint_attention_dim, config.dim)
        self.time_text_embed = TimeTextEmbedding(
            config.pooled_projection_dim, config.dim, config.guidance_embeds
        )
        heads, head_dim = config.num_attention_heads, config.attention_head_dim
        self.transformer_blocks = [DoubleBlock(heads, head_dim) for _ in range(config.num_layers)]
        self.single_transformer_blocks = [
            SingleBlock(heads, head_dim) for _ in range(config.num_single_layers)
        ]
        self.norm_out = Modulation(config.dim, 2)
        self.proj_out = Linear(config.dim, config.patch_size**2 * (config.out_channels or config.in_channels))

    def modulations(self) -> Iterator[tuple[str, Modulation]]:
        for index, double in enumerate(self.transformer_blocks):
            yield f"transformer_blocks.{index}.norm1", double.norm1
            yield f"transformer_blocks.{index}.norm1_context", double.norm1_context
        for index, single in enumerate(self.single_transformer_blocks):
            yield f"single_transformer_blocks.{index}.norm", single.norm
        yield "norm_out", self.norm_out

    def blocks(self) -> Iterator[tuple[str, Module]]:
        for name in ("transformer_blocks", "single_transformer_blocks"):
            for index, block in enumerate(getattr(self, name)):
                yield f"{name}.{index}", block

    def step(self, b: GraphBuilder, strategy: AttentionStrategy, shape: StepShape) -> None:
        assert not shape.skip_layers, "FLUX has no guidance that leaves blocks out"
        config = self.config
        img = b.input("img", (shape.batch, shape.image_tokens, config.in_channels))
        txt = b.input("txt", (shape.batch, shape.text_tokens, config.joint_attention_dim))
        modulations = self.step_modulations(b, shape.batch)
        periods = tuple(
            b.constant(f"periods{a}", rope_periods(d)) for a, d in enumerate(config.axes_dims_rope)
        )

        def rope(name: str, tokens: int) -> Rope:
            return Rope(strategy.split(b, b.input(name, (len(periods), tokens), "i32"), 1), periods)

        ropes = (rope("txt_positions", shape.text_tokens), rope("img_positions", shape.image_tokens))
        joint = JointSequence(strategy, (shape.text_tokens, shape.image_tokens), ropes, shape.watched)
        b.output("velocity", self(b, joint, img, txt, modulations))

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
        weights = WeightsAhead(b, self, [block for _, block in self.blocks()])
        for index, double in enumerate(self.transformer_blocks):
            weights.ready(double, txt, img)
            txt, img = double(b, joint, txt, img, modulations)
            joint.watch(b, f"transformer_blocks.{index}", txt, img)
        x, local_txt = b.concat([txt, img], 1), txt.shape[1]
        for index, single in enumerate(self.single_transformer_blocks):
            weights.ready(single, x)
            x = single(b, joint, x, local_txt, modulations)
            txt, img = b.slice(x, 1, 0, local_txt), b.slice(x, 1, local_txt, x.shape[1])
            joint.watch(b, f"single_transformer_blocks.{index}", txt, img)
        scale, shift = modulations.of(b, self.norm_out)
        out = self.proj_out(b, modulate(b, img, scale, shift))
        return joint.strategy.gather(b, out, joint.lengths[1])


class FluxTransformer(DiffusionTransformer):
    """Predicts the velocity of image tokens. Loaded by `from_pretrained`; called like diffusers' class."""

    config_class = FluxConfig
    architecture = "flux"
    network: FluxNetwork
    timestep_range = 1.0

    @classmethod
    def build_network(cls, config: FluxConfig) -> FluxNetwork:
        return FluxNetwork(config)

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
        return self._run_step(StepShape(batch, image_tokens, text_tokens), inputs)
