"""The Stable Diffusion 3 and 3.5 transformer (MMDiT) [Esser et al. 2024].

Follows SD3Transformer2DModel of diffusers 0.42. Text and image tokens keep streams of their own up to the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.conditioning import Modulation, StepModulations, TimeTextEmbedding
from edgedit.models.diffusion_transformer import DiffusionNetwork, DiffusionTransformer, StepShape
from edgedit.models.joint_blocks import JointSequence, modulate
from edgedit.models.layers import Linear
from edgedit.models.module import Module
from edgedit.models.patches import patchify, unpatchify_channels_last
from edgedit.models.sd3_blocks import MMDiTBlock, PatchEmbedding
from edgedit.models.sd3_config import PATCH, SD3Config
from edgedit.models.weight_residency import WeightsAhead
from edgedit.sequence.strategy import AttentionStrategy


class SD3Network(DiffusionNetwork):
    def __init__(self, config: SD3Config) -> None:
        self.config = config
        self.pos_embed = PatchEmbedding(config)
        self.time_text_embed = TimeTextEmbedding(config.pooled_projection_dim, config.dim)
        self.context_embedder = Linear(config.joint_attention_dim, config.dim)
        self.transformer_blocks = [
            MMDiTBlock(
                config.num_attention_heads,
                config.attention_head_dim,
                qk_norm=config.qk_norm is not None,
                is_last=index == config.num_layers - 1,
                dual=index in config.dual_attention_layers,
            )
            for index in range(config.num_layers)
        ]
        self.norm_out = Modulation(config.dim, 2)
        self.proj_out = Linear(config.dim, PATCH**2 * (config.out_channels or config.in_channels))

    def modulations(self) -> Iterator[tuple[str, Modulation]]:
        for index, block in enumerate(self.transformer_blocks):
            yield f"transformer_blocks.{index}.norm1", block.norm1
            yield f"transformer_blocks.{index}.norm1_context", block.norm1_context
        yield "norm_out", self.norm_out

    def blocks(self) -> Iterator[tuple[str, Module]]:
        for index, block in enumerate(self.transformer_blocks):
            yield f"transformer_blocks.{index}", block

    def step(self, b: GraphBuilder, strategy: AttentionStrategy, shape: StepShape) -> None:
        config = self.config
        patches = b.input("patches", (shape.batch, shape.image_tokens, PATCH**2 * config.in_channels))
        places = b.input("places", (shape.image_tokens,), "i32")
        txt = b.input("txt", (shape.batch, shape.text_tokens, config.joint_attention_dim))
        modulations = self.step_modulations(b, shape.batch)
        joint = JointSequence(strategy, (shape.text_tokens, shape.image_tokens), watched=shape.watched)
        b.output("velocity", self(b, joint, patches, places, txt, modulations, shape.skip_layers))

    def forward(
        self,
        b: GraphBuilder,
        joint: JointSequence,
        patches: Tensor,  # [B, S_img, 4 * in_channels]
        places: Tensor,  # i32 [S_img]
        txt: Tensor,  # [B, S_txt, joint_attention_dim]
        modulations: StepModulations,
        skip_layers: Sequence[int] = (),
    ) -> Tensor:
        img = self.pos_embed(b, joint.strategy.split(b, patches, 1), joint.strategy.split(b, places, 0))
        txt = self.context_embedder(b, joint.strategy.split(b, txt, 1))
        run = [block for index, block in enumerate(self.transformer_blocks) if index not in skip_layers]
        weights = WeightsAhead(b, self, run)
        for index, block in enumerate(self.transformer_blocks):
            if index not in skip_layers:
                weights.ready(block, txt, img)
                txt, img = block(b, joint, txt, img, modulations)
                joint.watch(b, f"transformer_blocks.{index}", txt, img)
        scale, shift = modulations.of(b, self.norm_out)
        out = self.proj_out(b, modulate(b, img, scale, shift))
        return joint.strategy.gather(b, out, joint.lengths[1])


class SD3Transformer(DiffusionTransformer):
    """Predicts the velocity of latents. Loaded by `from_pretrained`; called like diffusers' class."""

    config_class = SD3Config
    architecture = "sd3"
    network: SD3Network
    timestep_range = 1000.0

    @classmethod
    def build_network(cls, config: SD3Config) -> SD3Network:
        return SD3Network(config)

    def __call__(
        self,
        hidden_states: np.ndarray,
        encoder_hidden_states: np.ndarray,
        pooled_projections: np.ndarray,
        timestep: np.ndarray,
        skip_layers: Sequence[int] = (),
    ) -> np.ndarray:
        """One forward pass: `velocity` with the `modulations` of one step. Arguments as there, timestep is [B]."""
        modulations = self.modulations(np.asarray(timestep)[None], pooled_projections)
        return self.velocity(hidden_states, encoder_hidden_states, modulations[0], skip_layers)

    def velocity(
        self,
        hidden_states: np.ndarray,
        encoder_hidden_states: np.ndarray,
        modulations: np.ndarray,
        skip_layers: Sequence[int] = (),
    ) -> np.ndarray:
        """One step; every rank passes the whole inputs and gets the whole output.

        hidden_states          [B, in_channels, h, w] latents
        encoder_hidden_states  [B, S_txt, joint_attention_dim] text states
        modulations            [B, M] of this step
        skip_layers            blocks that are left out

        Returns [B, out_channels, h, w]. Raises ValueError for shapes that do not fit each other or the model and for
        blocks that it does not have.
        """
        config: SD3Config = self.config
        batch, _, height, width = hidden_states.shape
        skipped = tuple(sorted(set(skip_layers)))
        check_skip_layers(skipped, config.num_layers)
        places = positions_in_square(height, width, config.pos_embed_max_size)
        inputs = {
            "patches": patchify(hidden_states),
            "places": places,
            "txt": encoder_hidden_states,
            "modulations": modulations[:, None],
        }
        shape = StepShape(batch, len(places), encoder_hidden_states.shape[1], skipped)
        return unpatchify_channels_last(self._run_step(shape, inputs), height, width)


def positions_in_square(height: int, width: int, size: int) -> np.ndarray:
    """Places of the patches of latents height x width in the middle of a square of size x size positions: i32 [S].

    Raises ValueError for sides that are no multiples of a patch or longer than the square.
    """
    for name, side in (("height", height), ("width", width)):
        if side % PATCH or not 0 < side <= PATCH * size:
            raise ValueError(
                f"latents are {side} in {name}; legal are multiples of {PATCH} up to {PATCH * size}"
            )
    rows, columns = height // PATCH, width // PATCH
    row, column = np.indices((rows, columns)).reshape(2, -1)
    return ((row + (size - rows) // 2) * size + column + (size - columns) // 2).astype(np.int32)


def check_skip_layers(skip_layers: Sequence[int], num_layers: int) -> None:
    """Raises ValueError for blocks that a model of so many does not have."""
    beyond = [layer for layer in skip_layers if not 0 <= layer < num_layers]
    if beyond:
        raise ValueError(f"layers {beyond} cannot be left out; the model has layers 0 to {num_layers - 1}")
