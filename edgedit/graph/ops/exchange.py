"""pack and receive: what stands around an all-to-all between sharded tokens and sharded heads, one node each."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edgedit import _native
from edgedit.graph.ops.checks import require, require_dtype
from edgedit.graph.ops.collectives import CollectiveOps
from edgedit.graph.registry import Exchange
from edgedit.graph.tensor import Tensor

# ggml takes nine sources a node, one of them the buffer: two streams of q, k, v and a rope table are eight.
_MAX_SOURCES, _MAX_STREAMS = 8, 2


@dataclass(frozen=True, slots=True)
class Preparation:
    """RMS norm over the head dim, then rotation of neighbouring channel pairs, on the way into or out of a buffer.

    norms    weight [D] of each plane of each stream, None for none; leaves only, since they go by address
    rotated  per plane, whether it is rotated
    tables   the rope table [s, D / 2, 2] of each stream, if any plane is rotated
    """

    norms: tuple[tuple[Tensor | None, ...], ...]
    rotated: tuple[bool, ...]
    tables: tuple[Tensor, ...] = ()
    eps: float = 1e-6


class ExchangeOps(CollectiveOps):
    """Buffers are as csrc/layout.hpp states; see `Exchange` for the letters. Types f32, f16 and bf16 everywhere."""

    def __init__(self, name: str = "graph", ops: str = "auto", **choices: str) -> None:
        super().__init__(name, ops, **choices)
        # send tensor's node -> specs of the pack nodes that fill it: a transport may redirect them (set_targets)
        self.pack_specs: dict[int, list[Any]] = {}

    def pack(
        self, exchange: Exchange, streams: Sequence[Sequence[Tensor]], preparation: Preparation | None = None
    ) -> Tensor:
        """Send buffer of sequence -> head from streams[i][plane] [B, s_i, H, D], strided as they come."""
        _check_streams(exchange, streams)
        count = max(1, exchange.sequence_rows * exchange.elements_per_row)
        buffer: Tensor | None = None
        specs = []
        for part in _parts(exchange, len(streams)):
            spec = _spec(exchange, True, preparation)
            spec.limit(part.start, len(streams[part]), 0, exchange.planes)
            sources = _sources(streams[part], preparation.tables[part] if preparation else ())
            flops = _flops(preparation, sum(stream[0].count for stream in streams[part]))
            buffer = self._fused("pack", sources, (count,), exchange.buffer_dtype, spec, flops, into=buffer)
            specs.append(spec)
        assert buffer is not None and buffer.node is not None
        self.pack_specs[buffer.node] = specs
        return buffer

    def pack_planes(
        self,
        exchange: Exchange,
        streams: Sequence[Sequence[Tensor]],
        preparation: Preparation | None = None,
        dtype: str = "f32",
    ) -> Tensor:
        """What `receive_planes` gives, on one rank and with no exchange: [planes * B, H, S, D]."""
        _check_streams(exchange, streams)
        require(exchange.ranks == 1, "pack_planes", "only one rank holds all heads", *streams[0])
        shape = (exchange.planes * exchange.batch, exchange.heads, sum(exchange.tokens), exchange.head_dim)
        planes: Tensor | None = None
        for part in _parts(exchange, len(streams)):
            spec = _spec(exchange, True, preparation)
            spec.limit(part.start, len(streams[part]), 0, exchange.planes)
            spec.pack_planes()
            sources = _sources(streams[part], preparation.tables[part] if preparation else ())
            flops = _flops(preparation, sum(stream[0].count for stream in streams[part]))
            planes = self._fused("pack", sources, shape, dtype, spec, flops, into=planes)
        assert planes is not None
        return planes

    def pack_heads(self, exchange: Exchange, joint: Tensor) -> Tensor:
        """Send buffer of head -> sequence from the joint tensor [B, S, h, D] of this rank's heads."""
        shape = (exchange.batch, sum(exchange.tokens), exchange.local_heads, exchange.head_dim)
        require(joint.shape == shape, "pack_heads", f"the joint tensor must be {list(shape)}", joint)
        _require_rows("pack_heads", joint)
        spec = _spec(exchange, False)
        count = max(1, exchange.head_rows * exchange.elements_per_row)
        buffer = self._fused("pack", (joint,), (count,), exchange.buffer_dtype, spec)
        assert buffer.node is not None
        self.pack_specs[buffer.node] = [spec]
        return buffer

    def receive_planes(
        self,
        exchange: Exchange,
        received: Tensor,
        dtype: str = "f32",
        planes: range | None = None,
        preparation: Preparation | None = None,
    ) -> Tensor:
        """Head-major planes [planes * B, h, S, D] of this rank's heads, the streams' tokens one after another.

        `planes` selects some, for instance to give v another type; tables of a preparation hold all S_i tokens.
        """
        planes = range(exchange.planes) if planes is None else planes
        _check_buffer(received, exchange, exchange.head_rows)
        spec = _spec(exchange, True, preparation)
        spec.limit(0, len(exchange.tokens), planes.start, len(planes))
        rows = exchange.batch * exchange.local_heads * sum(exchange.tokens)
        shape = (len(planes) * exchange.batch, exchange.local_heads, sum(exchange.tokens), exchange.head_dim)
        tables = preparation.tables if preparation else ()
        flops = _flops(preparation, rows * exchange.head_dim, planes)
        return self._fused("receive", (received, *tables), shape, dtype, spec, flops)

    def receive_streams(self, exchange: Exchange, received: Tensor, dtype: str = "f32") -> list[Tensor]:
        """Each stream's [B, s_i, H * D], as views of one result: slices of its tokens where B is 1."""
        _check_buffer(received, exchange, exchange.sequence_rows)
        count = exchange.sequence_rows * exchange.head_dim
        spec = _spec(exchange, False)
        local = self._fused("receive", (received,), (max(1, count),), dtype, spec)
        batch, channels = exchange.batch, exchange.heads * exchange.head_dim
        rows = self.reshape(self.slice(local, 0, 0, count), (1, count // channels, channels))
        outputs, begin = [], 0
        for tokens in exchange.local_tokens:
            part = self.slice(rows, 1, begin, begin + batch * tokens)
            outputs.append(part if batch == 1 else self.reshape(part, (batch, tokens, channels)))
            begin += batch * tokens
        return outputs


def _parts(exchange: Exchange, num_streams: int) -> Iterator[slice]:
    """The streams of each node: planes and a table of each are its sources."""
    together = min(_MAX_STREAMS, _MAX_SOURCES // (exchange.planes + 1))
    return (slice(first, first + together) for first in range(0, num_streams, together))


def _spec(exchange: Exchange, to_heads: bool, preparation: Preparation | None = None) -> Any:
    spec = _native.ops.ExchangeSpec(
        to_heads,
        exchange.ranks,
        exchange.rank,
        exchange.tokens,
        exchange.heads,
        exchange.head_dim,
        exchange.batch,
        exchange.padded,
        exchange.wire,
    )
    if preparation:
        addresses = [
            [0 if weight is None else _norm_address(exchange, weight) for weight in stream]
            for stream in preparation.norms
        ]
        spec.prepare(addresses, preparation.rotated, preparation.eps)
        for table in preparation.tables:
            fits = table.shape[1:] == (exchange.head_dim // 2, 2)
            require(fits, "rope", f"a table for head dim {exchange.head_dim} is [s, D/2, 2]", table)
    return spec


def _norm_address(exchange: Exchange, weight: Tensor) -> int:
    fits = weight.node is None and weight.dtype == "f32" and weight.shape == (exchange.head_dim,)
    require(fits, "norm", f"a weight must be an f32 leaf [{exchange.head_dim}]", weight)
    return ctypes.addressof(weight.pointer.contents)


def _sources(streams: Sequence[Sequence[Tensor]], tables: Sequence[Tensor]) -> list[Tensor]:
    return [*(plane for stream in streams for plane in stream), *tables]


def _flops(preparation: Preparation | None, elements: int, planes: range | None = None) -> int:
    """Two operations an element for a norm with weight, one for the rotation, as the generic nodes count."""
    if not preparation:
        return 0
    planes = range(len(preparation.rotated)) if planes is None else planes
    normed = [any(stream[plane] is not None for stream in preparation.norms) for plane in planes]
    return elements * (2 * sum(normed) + sum(preparation.rotated[plane] for plane in planes))


def _check_streams(exchange: Exchange, streams: Sequence[Sequence[Tensor]]) -> None:
    for planes, tokens in zip(streams, exchange.local_tokens, strict=True):
        shape = (exchange.batch, tokens, exchange.heads, exchange.head_dim)
        require(len(planes) == exchange.planes, "pack", f"{exchange.planes} planes a stream", *planes)
        for plane in planes:
            require(plane.shape == shape, "pack", f"a plane of this stream must be {list(shape)}", plane)
            _require_rows("pack", plane)


def _require_rows(op: str, x: Tensor) -> None:
    require_dtype(op, x, "f32", "f16", "bf16")
    require(x.strides[-1] == (4 if x.dtype == "f32" else 2), op, "channels must be dense", x)


def _check_buffer(received: Tensor, exchange: Exchange, rows: int) -> None:
    fits = received.dtype == exchange.buffer_dtype and received.count >= rows * exchange.elements_per_row
    require(fits and received.is_contiguous, "receive", f"a packed {exchange.buffer_dtype} buffer", received)
