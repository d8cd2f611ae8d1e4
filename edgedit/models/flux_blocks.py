"""The two kinds of FLUX blocks. `vec` is the conditioning vector after its SiLU, [B, C]."""

from __future__ import annotations

from dataclasses import dataclass

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
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
    return b.modulate(x, scale, shift, NORM_EPS)


class Modulation(Module):
    """adaLN-Zero [Peebles and Xie 2023]: `count` vectors [B, 1, C] from the conditioning vector."""

    def __init__(self, dim: int, count: int) -> None:
        self.count = count
        self.linear = Linear(dim, count * dim)

    def forward(self, b: GraphBuilder, vec: Tensor) -> list[Tensor]:
        out = self.linear(b, vec)
        return b.split(b.reshape(out, (out.shape[0], 1, out.shape[1])), self.count, axis=2)


class GeluProjection(Module):
    def __init__(self, dim: int, inner: int) -> None:
        self.proj = Linear(dim, inner)

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        return b.gelu(self.proj(b, x))


class FeedForward(Module):
    def __init__(self, dim: int) -> None:
        widen, narrow = GeluProjection(dim, MLP_RATIO * dim), Linear(MLP_RATIO * dim, dim)
        self.net: list[Module | None] = [widen, None, narrow]  # the checkpoint counts a dropout between them

    def forward(self, b: GraphBuilder, x: Tensor) -> Tensor:
        for layer in self.net:
            x = layer(b, x) if layer else x
        return x


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
        self, b: GraphBuilder, joint: JointSequence, txt: Tensor, img: Tensor
    ) -> tuple[Tensor, Tensor]:
        def heads(x: Tensor) -> Tensor:  # [B, s, C] -> [B, s, H, D]
            return b.reshape(x, (*x.shape[:2], self.heads, self.head_dim))

        txt_stream = Stream(
            heads(self.add_q_proj(b, txt)),
            heads(self.add_k_proj(b, txt)),
            heads(self.add_v_proj(b, txt)),
            joint.lengths[0],
            joint.ropes[0],
            self.norm_added_q.weight.on(b),
            self.norm_added_k.weight.on(b),
            NORM_EPS,
        )
        img_stream = Stream(
            heads(self.to_q(b, img)),
            heads(self.to_k(b, img)),
            heads(self.to_v(b, img)),
            joint.lengths[1],
            joint.ropes[1],
            self.norm_q.weight.on(b),
            self.norm_k.weight.on(b),
            NORM_EPS,
        )
        txt_out, img_out = joint.strategy.attention(b, [txt_stream, img_stream])
        return self.to_add_out(b, txt_out), self.to_out[0](b, img_out)


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
        self, b: GraphBuilder, joint: JointSequence, txt: Tensor, img: Tensor, vec: Tensor
    ) -> tuple[Tensor, Tensor]:
        txt_shift, txt_scale, txt_gate, txt_mlp_shift, txt_mlp_scale, txt_mlp_gate = self.norm1_context(
            b, vec
        )
        img_shift, img_scale, img_gate, img_mlp_shift, img_mlp_scale, img_mlp_gate = self.norm1(b, vec)

        txt_normed, img_normed = (
            modulate(b, txt, txt_scale, txt_shift),
            modulate(b, img, img_scale, img_shift),
        )
        txt_out, img_out = self.attn(b, joint, txt_normed, img_normed)

        txt = b.gated_residual(txt, txt_gate, txt_out)
        txt = b.gated_residual(
            txt, txt_mlp_gate, self.ff_context(b, modulate(b, txt, txt_mlp_scale, txt_mlp_shift))
        )
        img = b.gated_residual(img, img_gate, img_out)
        img = b.gated_residual(img, img_mlp_gate, self.ff(b, modulate(b, img, img_mlp_scale, img_mlp_shift)))
        return txt, img


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
        qkv = [b.reshape(to(b, x), shape) for to in (self.to_q, self.to_k, self.to_v)]
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
        self, b: GraphBuilder, joint: JointSequence, x: Tensor, local_txt: int, vec: Tensor
    ) -> Tensor:
        shift, scale, gate = self.norm(b, vec)
        normed = modulate(b, x, scale, shift)
        attended = self.attn(b, joint, normed, local_txt)
        mlp = b.gelu(self.proj_mlp(b, normed))
        return b.gated_residual(x, gate, self.proj_out(b, b.concat([attended, mlp], 2)))
