"""What a model knows of sequence parallelism: it hands streams to a strategy and gets each stream's output back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding over several axes: axis a turns the next `2 * len(periods[a])` channels of each head.

    positions  i32 [axes, s], of this rank's tokens
    periods    one f32 [d_a / 2] per axis: an angle is position / period
    """

    positions: Tensor
    periods: tuple[Tensor, ...]

    def apply(self, b: GraphBuilder, x: Tensor) -> Tensor:
        """Rotate x [B, s, H, D]."""
        if not x.count:
            return x
        parts, begin = [], 0
        for axis, periods in enumerate(self.periods):
            end = begin + 2 * periods.shape[0]
            positions = b.reshape(b.slice(self.positions, 0, axis, axis + 1), (x.shape[1],))
            parts.append(b.rope(b.slice(x, 3, begin, end), positions, periods))
            begin = end
        return b.concat(parts, 3)


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of tokens in joint attention, sharded by tokens unless it is replicated.

    q, k, v         [B, s, H, D], this rank's tokens; v f32 or as `GraphBuilder.activations`
    length          tokens of the whole stream
    rope            rotation of q and k
    q_norm, k_norm  RMS norm over D with weight [D], before the rotation
    replicated      every rank holds the whole stream: it never travels, and its output is whole on every rank, equal
                    up to the order of sums
    """

    q: Tensor
    k: Tensor
    v: Tensor
    length: int
    rope: Rope | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    norm_eps: float = 1e-6
    replicated: bool = False

    def prepared(self, b: GraphBuilder) -> tuple[Tensor, Tensor, Tensor]:
        """q and k after norm and rotation, and v; all f32."""
        q = self._prepare(b, self.q, self.q_norm)
        return q, self._prepare(b, self.k, self.k_norm), b.cast(self.v, "f32")

    def _prepare(self, b: GraphBuilder, x: Tensor, weight: Tensor | None) -> Tensor:
        if weight is not None:
            x = b.rms_norm(x, self.norm_eps, weight)
        return self.rope.apply(b, x) if self.rope else x


class AttentionStrategy(ABC):
    """How attention reaches the tokens of all ranks. A model calls these three and never mentions ranks."""

    degree: int = 1

    @abstractmethod
    def split(self, b: GraphBuilder, x: Tensor, axis: int) -> Tensor:
        """This rank's share of a tensor that every rank holds whole, along its token axis; a view."""

    @abstractmethod
    def gather(self, b: GraphBuilder, x: Tensor, length: int) -> Tensor:
        """The whole [B, S, C] from every rank's share [B, s, C]; `length` is S."""

    @abstractmethod
    def attention(
        self, b: GraphBuilder, streams: Sequence[Stream], mask: Tensor | None = None
    ) -> list[Tensor]:
        """Attention over the joint sequence of all streams, which stand in it one after another.

        `mask` is added to the scores, -inf to leave a key out: f32 or f16 [B | 1, H | 1, S | 1, S] over queries and
        keys of the joint sequence, whole on every rank.

        Returns each stream's output [B, s, H * D], sharded like it, of type `b.activations`; its rows may be apart.
        """
