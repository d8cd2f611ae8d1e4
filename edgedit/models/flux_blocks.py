"""The two kinds of FLUX blocks; for the types of what they pass on see joint_blocks.py."""

from __future__ import annotations

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.conditioning import Modulation, StepModulations
from edgedit.models.joint_blocks import (
    MLP_RATIO,
    NORM_EPS,
    FeedForward,
    JointAttention,
    JointSequence,
    modulate,
    project_heads,
    to_heads,
    token_stream,
)
from edgedit.models.layers import Linear, RMSNorm, Run
from edgedit.models.module import Module


class DoubleBlock(Module):
    """Text and image streams with weights of their own, joined in attention only."""

    def __init__(self, heads: int, head_dim: int) -> None:
        dim = heads * head_dim
        self.norm1 = Modulation(dim, 6)
        self.norm1_context = Modulation(dim, 6)
        self.attn = JointAttention(heads, head_dim)
        self.ff = FeedForward(dim)
        self.ff_context = FeedForward(dim)

    def forward(
        self, b: GraphBuilder, joint: JointSequence, txt: Tensor, img: Tensor, modulations: StepModulations
    ) -> tuple[Tensor, Tensor]:
        txt_shift, txt_scale, txt_gate, txt_mlp_shift, txt_mlp_scale, txt_mlp_gate = modulations.of(
            b, self.norm1_context
        )
        img_shift, img_scale, img_gate, img_mlp_shift, img_mlp_scale, img_mlp_gate = modulations.of(
            b, self.norm1
        )
        normed = modulate(b, txt, txt_scale, txt_shift), modulate(b, img, img_scale, img_shift)
        txt, img = self.attn(b, joint, (txt, img), normed, (txt_gate, img_gate))
        txt_normed = modulate(b, txt, txt_mlp_scale, txt_mlp_shift)
        img_normed = modulate(b, img, img_mlp_scale, img_mlp_shift)
        return (
            self.ff_context(b, txt_normed, txt_mlp_gate, txt),
            self.ff(b, img_normed, img_mlp_gate, img),
        )


class SelfAttention(Module):
    """q, k and v of a single block; the output projection is fused with the MLP's."""

    def __init__(self, heads: int, head_dim: int) -> None:
        self.head_dim = head_dim
        dim = heads * head_dim
        self.to_q, self.to_k, self.to_v = (to_heads(dim, head_dim) for _ in range(3))
        self.norm_q, self.norm_k = RMSNorm(head_dim, NORM_EPS), RMSNorm(head_dim, NORM_EPS)

    def forward(self, b: GraphBuilder, joint: JointSequence, x: Tensor, local_txt: int) -> Tensor:
        """x [B, s_txt + s_img, C], of which the first `local_txt` tokens are text."""
        qkv = project_heads(b, x, (self.to_q, self.to_k, self.to_v), self.head_dim)
        bounds = ((0, local_txt), (local_txt, x.shape[1]))
        streams = []
        for (begin, end), length, rope in zip(bounds, joint.lengths, joint.ropes, strict=True):
            parts = [b.slice(part, 1, begin, end) for part in qkv]
            streams.append(token_stream(b, parts, (self.norm_q, self.norm_k), length, rope))
        return b.concat(joint.strategy.attention(b, streams), 1)


class SingleBlock(Module):
    """Both streams side by side through one set of weights; attention and MLP run from the same input."""

    def __init__(self, heads: int, head_dim: int) -> None:
        dim = heads * head_dim
        self.norm = Modulation(dim, 3)
        self.proj_mlp = Linear(dim, MLP_RATIO * dim, split="columns")
        beside = [Run(dim, head_dim), Run(MLP_RATIO * dim)]  # what was attended to and the MLP's hidden channels
        self.proj_out = Linear((1 + MLP_RATIO) * dim, dim, split="rows", runs=beside)
        self.attn = SelfAttention(heads, head_dim)

    def forward(
        self, b: GraphBuilder, joint: JointSequence, x: Tensor, local_txt: int, modulations: StepModulations
    ) -> Tensor:
        shift, scale, gate = modulations.of(b, self.norm)
        normed = modulate(b, x, scale, shift)
        attended = self.attn(b, joint, normed, local_txt)
        mlp = self.proj_mlp(b, normed, activation="gelu", dtype=self.proj_out.input_type(b))
        return self.proj_out(b, (attended, mlp), gate=gate, residual=x)
