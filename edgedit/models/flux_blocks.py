"""The two kinds of FLUX blocks. The residual streams are f32; what only feeds products has type `b.activations`."""

from __future__ import annotations

from dataclasses import dataclass

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.flux_conditioning import Modulation, StepModulations
from edgedit.models.layers import Linear, RMSNorm
from edgedit.models.module import Module
from edgedit.sequence.strategy import AttentionStrategy, Rope, Stream

NORM_EPS = 1e-6
MLP_RATIO = 4


@dataclass(frozen=True, slots=True)
class JointSequence:
    """What attention needs to know of the two streams, text first, besides their tokens."""

    strategy: AttentionStrategy
    lengths: tuple[int, int]  # of the whole streams
    ropes: tuple[Rope, Rope]


def modulate(b: GraphBuilder, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """LayerNorm(x) (1 + scale) + shift for x [B, s, C] and scale, shift [B, 1, C]."""
    return b.modulate(x, scale, shift, NORM_EPS, dtype=b.activations)


class GeluProjection(Module):
    def __init__(self, dim: int, inner: int) -> None:
        self.proj = Linear(dim, inner)

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        return self.proj(b, x, activation="gelu", dtype=b.activations)


class FeedForward(Module):
    def __init__(self, dim: int) -> None:
        widen, narrow = GeluProjection(dim, MLP_RATIO * dim), Linear(MLP_RATIO * dim, dim)
        self.net: list[Module | None] = [widen, None, narrow]  # the checkpoint counts a dropout between them

    def forward(self, b: GraphBuilder, x: Tensor, gate: Tensor, residual: Tensor) -> Tensor:
        """residual + gate * MLP(x)."""
        widen, narrow = (layer for layer in self.net if layer)
        return narrow(b, widen(b, x), gate=gate, residual=residual)


class JointAttention(Module):
    """q, k, v of both streams of a double block, and their output projections."""

    def __init__(self, heads: int, head_dim: int) -> None:
        self.heads, self.head_dim = heads, head_dim
        dim = heads * head_dim
        self.to_q, self.to_k, self.to_v = (Linear(dim, dim) for _ in range(3))
        self.add_q_proj, self.add_k_proj, self.add_v_proj = (Linear(dim, dim) for _ in range(3))
        self.norm_q, self.norm_k = RMSNorm(head_dim, NORM_EPS), RMSNorm(head_dim, NORM_EPS)
        self.norm_added_q, self.norm_added_k = RMSNorm(head_dim, NORM_EPS), RMSNorm(head_dim, NORM_EPS)
        self.to_out = [Linear(dim, dim)]
        self.to_add_out = Linear(dim, dim)

    def forward(
        self,
        b: GraphBuilder,
        joint: JointSequence,
        streams: tuple[Tensor, Tensor],
        normed: tuple[Tensor, Tensor],
        gates: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """streams + gates * attention(normed), text first in each pair."""

        def heads(x: Tensor) -> Tensor:  # [B, s, C] -> [B, s, H, D]
            return b.reshape(x, (*x.shape[:2], self.heads, self.head_dim))

        txt, img = normed
        txt_stream = Stream(
            heads(self.add_q_proj(b, txt)),
            heads(self.add_k_proj(b, txt)),
            heads(self.add_v_proj(b, txt, dtype=b.activations)),
            joint.lengths[0],
            joint.ropes[0],
            self.norm_added_q.weight.on(b),
            self.norm_added_k.weight.on(b),
            NORM_EPS,
        )
        img_stream = Stream(
            heads(self.to_q(b, img)),
            heads(self.to_k(b, img)),
            heads(self.to_v(b, img, dtype=b.activations)),
            joint.lengths[1],
            joint.ropes[1],
            self.norm_q.weight.on(b),
            self.norm_k.weight.on(b),
            NORM_EPS,
        )
        txt_out, img_out = joint.strategy.attention(b, [txt_stream, img_stream])
        return (
            self.to_add_out(b, txt_out, gate=gates[0], residual=streams[0]),
            self.to_out[0](b, img_out, gate=gates[1], residual=streams[1]),
        )


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
        self.heads, self.head_dim = heads, head_dim
        dim = heads * head_dim
        self.to_q, self.to_k, self.to_v = (Linear(dim, dim) for _ in range(3))
        self.norm_q, self.norm_k = RMSNorm(head_dim, NORM_EPS), RMSNorm(head_dim, NORM_EPS)

    def forward(self, b: GraphBuilder, joint: JointSequence, x: Tensor, local_txt: int) -> Tensor:
        """x [B, s_txt + s_img, C], of which the first `local_txt` tokens are text."""
        shape = (*x.shape[:2], self.heads, self.head_dim)
        qkv = [
            b.reshape(y, shape)
            for y in (self.to_q(b, x), self.to_k(b, x), self.to_v(b, x, dtype=b.activations))
        ]
        q_norm, k_norm = self.norm_q.weight.on(b), self.norm_k.weight.on(b)
        bounds = ((0, local_txt), (local_txt, x.shape[1]))
        streams = []
        for (begin, end), length, rope in zip(bounds, joint.lengths, joint.ropes, strict=True):
            q, k, v = (b.slice(part, 1, begin, end) for part in qkv)
            streams.append(Stream(q, k, v, length, rope, q_norm, k_norm, NORM_EPS))
        return b.concat(joint.strategy.attention(b, streams), 1)


class SingleBlock(Module):
    """Both streams side by side through one set of weights; attention and MLP run from the same input."""

    def __init__(self, heads: int, head_dim: int) -> None:
        dim = heads * head_dim
        self.norm = Modulation(dim, 3)
        self.proj_mlp = Linear(dim, MLP_RATIO * dim)
        self.proj_out = Linear((1 + MLP_RATIO) * dim, dim)
        self.attn = SelfAttention(heads, head_dim)

    def forward(
        self, b: GraphBuilder, joint: JointSequence, x: Tensor, local_txt: int, modulations: StepModulations
    ) -> Tensor:
        shift, scale, gate = modulations.of(b, self.norm)
        normed = modulate(b, x, scale, shift)
        attended = self.attn(b, joint, normed, local_txt)
        mlp = self.proj_mlp(b, normed, activation="gelu", dtype=b.activations)
        return self.proj_out(b, (attended, mlp), gate=gate, residual=x)
