"""Fused operators by name: where they run, and what they take. Whether one is used must be the same on every rank, so
`supports` looks at nothing that differs between ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgedit import _native
from edgedit.parallel.split import array_split

MODES = ("auto", "fused", "generic")
WIRE_DTYPES = ("f32", "f16", "bf16")
# Types of linear weights that kernels read as panels; those of other types they read as ggml's blocks.
PACKED_TYPES = ("f32", "f16", "bf16")


@dataclass(frozen=True, slots=True)
class Exchange:
    """An all-to-all between sharded tokens and sharded heads; all but `rank` is the same on every rank.

    tokens  global count of each stream; padded says that every rank holds ceil(count / ranks) slots of it
    wire    one dtype per plane, such as q, k and v
    """

    ranks: int
    rank: int
    tokens: tuple[int, ...]
    heads: int
    head_dim: int
    batch: int
    padded: bool
    wire: tuple[str, ...]

    @property
    def planes(self) -> int:
        return len(self.wire)

    @property
    def local_tokens(self) -> tuple[int, ...]:
        """Token slots of this rank, per stream."""
        return tuple(self._shares(count)[self.rank] for count in self.tokens)

    @property
    def local_heads(self) -> int:
        return array_split(self.heads, self.ranks)[self.rank]

    @property
    def sequence_rows(self) -> int:
        """Heads of tokens in the buffer of this rank's tokens."""
        return self.batch * self.heads * sum(self.local_tokens)

    @property
    def head_rows(self) -> int:
        """Heads of tokens in the buffer of this rank's heads."""
        return self.batch * self.local_heads * sum(sum(self._shares(count)) for count in self.tokens)

    @property
    def buffer_dtype(self) -> str:
        """Type of the send and receive tensors: the wire's, or bytes where planes differ."""
        return self.wire[0] if len(set(self.wire)) == 1 else "i8"

    @property
    def elements_per_row(self) -> int:
        """Elements of `buffer_dtype` that one head of one token takes, all planes."""
        if self.buffer_dtype != "i8":
            return self.planes * self.head_dim
        return self.head_dim * sum(4 if dtype == "f32" else 2 for dtype in self.wire)

    def _shares(self, count: int) -> list[int]:
        if self.padded:
            return [-(-count // self.ranks)] * self.ranks
        return list(array_split(count, self.ranks))


@dataclass(frozen=True, slots=True)
class Operator:
    """A fused operator. `cpu` is the address of its callback; `supports` says why arguments are not taken.

    needs_kernels  True where a kernel family does the work: there is none on devices
    """

    name: str
    cpu: int
    supports: Callable[..., str | None]
    needs_kernels: bool = False


def supports_exchange(exchange: Exchange, rotated: bool = False) -> str | None:
    """Of pack and receive: `rotated` tells whether rotary embedding is applied on the way."""
    streams, planes, head_dim = len(exchange.tokens), exchange.planes, exchange.head_dim
    others = sorted(set(exchange.wire) - set(WIRE_DTYPES))
    if others:
        return f"{', '.join(others)} on the wire; only {', '.join(WIRE_DTYPES)}"
    if streams > _native.ops.max_streams:
        return f"{streams} streams; at most {_native.ops.max_streams}"
    if planes > _native.ops.max_planes:
        return f"{planes} planes; at most {_native.ops.max_planes}"
    if head_dim > _native.ops.max_head_dim:
        return f"head dim {head_dim}; at most {_native.ops.max_head_dim}"
    if rotated and head_dim % 2:
        return f"head dim {head_dim} is odd and cannot be rotated"
    if exchange.buffer_dtype == "i8" and head_dim % 2:
        return f"head dim {head_dim} is odd, and the planes differ in type on the wire"
    return None


def supports_rope_table(axes: int) -> str | None:
    return None if axes <= 8 else f"{axes} position axes; at most 8"


def supports_pointwise(*dtypes: str) -> str | None:
    """Of modulate and gated_residual."""
    others = sorted(set(dtypes) - {"f32"})
    return f"{', '.join(others)} operands; only f32" if others else None


def supports_linear(kernels: str, dtype: str, packed: str | None, are_leaves: bool) -> str | None:
    """The weight's type and the family that it is packed for; weight and bias go by address, so both must be leaves."""
    if not are_leaves:
        return "a weight or bias that is computed"
    if dtype in PACKED_TYPES and packed != kernels:
        return f"a weight that is not packed for kernels {kernels}"
    return None


def supports_attention() -> str | None:
    return None


def supports_conv2d(dtype: str, are_leaves: bool) -> str | None:
    """The weight's type; weight and bias go by address."""
    if not are_leaves:
        return "a weight or bias that is computed"
    return None if dtype == "f32" else f"{dtype} weights; only f32"


OPERATORS = {
    operator.name: operator
    for operator in (
        Operator("pack", _native.ops.pack, supports_exchange),
        Operator("receive", _native.ops.receive, supports_exchange),
        Operator("rope_table", _native.ops.rope_table, supports_rope_table),
        Operator("modulate", _native.ops.modulate, supports_pointwise),
        Operator("gated_residual", _native.ops.gated_residual, supports_pointwise),
        Operator("linear", _native.ops.linear, supports_linear, needs_kernels=True),
        Operator("attention", _native.ops.attention, supports_attention, needs_kernels=True),
        Operator("attention_partial", _native.ops.attention_partial, supports_attention),
        Operator("attention_merge", _native.ops.attention_merge, supports_attention),
        Operator("conv2d", _native.ops.conv2d, supports_conv2d, needs_kernels=True),
    )
}
