"""What the blocks of FLUX and of Stable Diffusion 3 have in common: a text and an image stream, joined in attention.

The residual streams are f32; what only feeds products has type `b.activations`, or the one that the layer which reads
it reads best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.layers import Linear, RMSNorm, Run
from edgedit.models.module import Module
from edgedit.sequence.strategy import AttentionStrategy, Rope, Stream

NORM_EPS = 1e-6
MLP_RATIO = 4

Norms = tuple["RMSNorm | None", "RMSNorm | None"]  # of q and k


@dataclass(frozen=True, slots=True)
class JointSequence:
    """What attention needs to know of the two streams, text first, besides their tokens.

    watched  True where what each block gives is an output of the graph too
    """

    strategy: AttentionStrategy
    lengths: tuple[int, int]  # of the whole streams
    ropes: tuple[Rope | None, Rope | None] = (None, None)
    watched: bool = False

    def watch(self, b: GraphBuilder, block: str, txt: Tensor, img: Tensor) -> None:
        """Show a block's tokens [B, s, C], whole, as outputs "BLOCK.txt" and "BLOCK.img" of a watched graph."""
        if not self.watched:
            return
        for stream, x, length in zip(("txt", "img"), (txt, img), self.lengths, strict=True):
            with b.scope(f"{block}.{stream}"):
                whole = b.contiguous(self.strategy.gather(b, x, length))
            b.output(f"{block}.{stream}", whole)


def modulate(b: GraphBuilder, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """LayerNorm(x) (1 + scale) + shift for x [B, s, C] and scale, shift [B, 1, C]."""
    return b.modulate(x, scale, shift, NORM_EPS, dtype=b.activations)


def to_heads(dim: int, head_dim: int) -> Linear:
    """A projection to attention heads, which ranks may share."""
    return Linear(dim, dim, split="columns", runs=[Run(dim, head_dim)])


def from_heads(dim: int, head_dim: int) -> Linear:
    """A projection of what heads have attended to."""
    return Linear(dim, dim, split="rows", runs=[Run(dim, head_dim)])


def project_heads(b: GraphBuilder, x: Tensor, projections: Sequence[Linear], head_dim: int) -> list[Tensor]:
    """q, k and v [B, s, H, D] of x [B, s, C], for as many heads as the projections have."""
    to_q, to_k, to_v = projections
    qkv = to_q(b, x), to_k(b, x), to_v(b, x, dtype=b.activations)
    return [b.reshape(y, (*y.shape[:2], y.shape[2] // head_dim, head_dim)) for y in qkv]


def token_stream(
    b: GraphBuilder, qkv: Sequence[Tensor], norms: Norms, length: int, rope: Rope | None = None
) -> Stream:
    """The stream of q, k and v [B, s, H, D] with RMS norms of q and k where there are any."""
    q, k, v = qkv
    q_norm, k_norm = (norm.weight.on(b) if norm else None for norm in norms)
    return Stream(q, k, v, length, rope, q_norm, k_norm, NORM_EPS)


class GeluProjection(Module):
    def __init__(self, dim: int, inner: int) -> None:
        self.proj = Linear(dim, inner, split="columns")

    def forward(self, b: GraphBuilder, x: Tensor, dtype: str) -> Tensor:
        return self.proj(b, x, activation="gelu", dtype=dtype)


class FeedForward(Module):
    def __init__(self, dim: int) -> None:
        widen, narrow = GeluProjection(dim, MLP_RATIO * dim), Linear(MLP_RATIO * dim, dim, split="rows")
        self.net: list[Module | None] = [widen, None, narrow]  # the checkpoint counts a dropout between them

    def forward(self, b: GraphBuilder, x: Tensor, gate: Tensor, residual: Tensor) -> Tensor:
        """residual + gate * MLP(x)."""
        widen, _, narrow = self.net
        assert widen and isinstance(narrow, Linear)
        return narrow(b, widen(b, x, narrow.input_type(b)), gate=gate, residual=residual)


class JointAttention(Module):
    """q, k, v of both streams, and their output projections.

    qk_norm           RMS norm of q and k
    reads_text_only   the text is attended to, but what it attends to is not needed: it has no output projection
    """

    def __init__(
        self, heads: int, head_dim: int, qk_norm: bool = True, reads_text_only: bool = False
    ) -> None:
        self.head_dim = head_dim
        dim = heads * head_dim
        self.to_q, self.to_k, self.to_v = (to_heads(dim, head_dim) for _ in range(3))
        self.add_q_proj, self.add_k_proj, self.add_v_proj = (to_heads(dim, head_dim) for _ in range(3))
        norms = [RMSNorm(head_dim, NORM_EPS) if qk_norm else None for _ in range(4)]
        self.norm_q, self.norm_k, self.norm_added_q, self.norm_added_k = norms
        self.to_out = [from_heads(dim, head_dim)]
        self.to_add_out = None if reads_text_only else from_heads(dim, head_dim)

    def forward(
        self,
        b: GraphBuilder,
        joint: JointSequence,
        streams: tuple[Tensor, Tensor],
        normed: tuple[Tensor, Tensor],
        gates: tuple[Tensor | None, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """streams + gates * attention(normed), text first in each pair; a text that is only read stays as it is."""
        parts = (
            ((self.add_q_proj, self.add_k_proj, self.add_v_proj), (self.norm_added_q, self.norm_added_k)),
            ((self.to_q, self.to_k, self.to_v), (self.norm_q, self.norm_k)),
        )
        pair = [
            token_stream(b, project_heads(b, x, projections, self.head_dim), norms, length, rope)
            for x, (projections, norms), length, rope in zip(
                normed, parts, joint.lengths, joint.ropes, strict=True
            )
        ]
        txt_out, img_out = joint.strategy.attention(b, pair)
        txt, img = streams
        if self.to_add_out is not None:
            txt = self.to_add_out(b, txt_out, gate=gates[0], residual=txt)
        return txt, self.to_out[0](b, img_out, gate=gates[1], residual=img)
