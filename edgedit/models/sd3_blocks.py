"""Parts of the Stable Diffusion 3 transformer (MMDiT) [Esser et al. 2024] that FLUX does not have.

The residual streams are f32; what only feeds products has type `b.activations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.conditioning import Modulation, StepModulations
from edgedit.models.joint_blocks import (
    NORM_EPS,
    FeedForward,
    JointAttention,
    JointSequence,
    from_heads,
    modulate,
    project_heads,
    to_heads,
    token_stream,
)
from edgedit.models.layers import RMSNorm
from edgedit.models.module import Module, Parameter

if TYPE_CHECKING:
    from edgedit.models.sd3_config import SD3Config


class PatchProjection(Module):
    """Published as a convolution whose stride is its kernel; that is one product a patch."""

    def __init__(self, config: SD3Config) -> None:
        self.weight = Parameter(
            (config.dim, config.in_channels, config.patch_size, config.patch_size), "patch"
        )
        self.bias = Parameter((config.dim,), "bias")

    def forward(self, b: GraphBuilder, patches: Tensor) -> Tensor:
        return b.linear(patches, self.weight.on(b), self.bias.on(b))


class PatchEmbedding(Module):
    """Patches [B, s, 4 * C] and their places i32 [s] in a square of positions -> tokens [B, s, dim]."""

    def __init__(self, config: SD3Config) -> None:
        self.proj = PatchProjection(config)
        self.pos_embed = Parameter((1, config.pos_embed_max_size**2, config.dim), "embedding")

    def forward(self, b: GraphBuilder, patches: Tensor, places: Tensor) -> Tensor:
        x = self.proj(b, patches)
        if not places.count:
            return x
        table = b.reshape(self.pos_embed.on(b), self.pos_embed.shape[1:])
        return b.add(x, b.embedding(table, places))


class ImageAttention(Module):
    """Attention of the image to itself, beside the joint one, in blocks with dual attention."""

    def __init__(self, heads: int, head_dim: int, qk_norm: bool) -> None:
        self.head_dim = head_dim
        dim = heads * head_dim
        self.to_q, self.to_k, self.to_v = (to_heads(dim, head_dim) for _ in range(3))
        self.norm_q, self.norm_k = (RMSNorm(head_dim, NORM_EPS) if qk_norm else None for _ in range(2))
        self.to_out = [from_heads(dim, head_dim)]

    def forward(
        self, b: GraphBuilder, joint: JointSequence, img: Tensor, normed: Tensor, gate: Tensor
    ) -> Tensor:
        """img + gate * attention(normed)."""
        qkv = project_heads(b, normed, (self.to_q, self.to_k, self.to_v), self.head_dim)
        stream = token_stream(b, qkv, (self.norm_q, self.norm_k), joint.lengths[1])
        (attended,) = joint.strategy.attention(b, [stream])
        return self.to_out[0](b, attended, gate=gate, residual=img)


class MMDiTBlock(Module):
    """Text and image streams with weights of their own, joined in attention.

    is_last  nothing reads the text after this block: it is attended to and not changed
    dual     the image also attends to itself alone
    """

    def __init__(self, heads: int, head_dim: int, *, qk_norm: bool, is_last: bool, dual: bool) -> None:
        dim = heads * head_dim
        self.norm1 = Modulation(dim, 9 if dual else 6)
        self.norm1_context = Modulation(dim, 2 if is_last else 6)
        self.attn = JointAttention(heads, head_dim, qk_norm, reads_text_only=is_last)
        self.attn2 = ImageAttention(heads, head_dim, qk_norm) if dual else None
        self.ff = FeedForward(dim)
        self.ff_context = None if is_last else FeedForward(dim)

    def forward(
        self, b: GraphBuilder, joint: JointSequence, txt: Tensor, img: Tensor, modulations: StepModulations
    ) -> tuple[Tensor, Tensor]:
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate, *second = modulations.of(b, self.norm1)
        of_text = modulations.of(b, self.norm1_context)
        if self.ff_context is None:  # published in the other order
            txt_scale, txt_shift = of_text
            txt_gate = None
        else:
            txt_shift, txt_scale, txt_gate, *of_text_mlp = of_text

        before = img
        normed = modulate(b, txt, txt_scale, txt_shift), modulate(b, img, scale, shift)
        txt, img = self.attn(b, joint, (txt, img), normed, (txt_gate, gate))
        if self.attn2 is not None:
            second_shift, second_scale, second_gate = second
            img = self.attn2(b, joint, img, modulate(b, before, second_scale, second_shift), second_gate)
        img = self.ff(b, modulate(b, img, mlp_scale, mlp_shift), mlp_gate, img)
        if self.ff_context is not None:
            txt_mlp_shift, txt_mlp_scale, txt_mlp_gate = of_text_mlp
            txt = self.ff_context(b, modulate(b, txt, txt_mlp_scale, txt_mlp_shift), txt_mlp_gate, txt)
        return txt, img
