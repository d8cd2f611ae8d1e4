"""Every CUDA operator against the CPU operator of the same name, and against its twin of stock nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.ops.exchange import Preparation
from edgedit.graph.registry import Exchange
from edgedit.graph.tensor import Tensor

CLOSE = {"atol": 1e-6, "rtol": 1e-6}
# Uneven heads and tokens, one token fewer than ranks, odd head sizes, a head of more than 256 channels.
EXCHANGES = [
    Exchange(1, 0, (5, 33), 4, 128, 1, False, ("f32",) * 3),
    Exchange(2, 1, (7, 33), 5, 128, 2, False, ("f32",) * 3),
    Exchange(3, 1, (2, 17), 7, 64, 1, False, ("f16",) * 3),
    Exchange(4, 3, (3, 30), 4, 40, 2, True, ("bf16",) * 3),
    Exchange(2, 0, (5,), 3, 6, 1, False, ("f32",) * 3),
    Exchange(2, 1, (5, 9), 2, 512, 1, False, ("f32",) * 3),
    Exchange(8, 7, (64, 129), 24, 128, 1, False, ("f32", "f32", "bf16")),
]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def streams_of(exchange: Exchange, seed: int = 0) -> list[np.ndarray]:
    """One array per stream with the planes side by side, so that each plane is a strided view: [B, s, H, K * D]."""
    width = exchange.planes * exchange.head_dim
    return [
        random(exchange.batch, max(1, tokens), exchange.heads, width, seed=seed + i)
        for i, tokens in enumerate(exchange.local_tokens)
    ]


def planes(b: GraphBuilder, exchange: Exchange, streams: tuple[Tensor, ...]) -> list[list[Tensor]]:
    taken = []
    for tokens, x in zip(exchange.local_tokens, streams, strict=True):
        taken.append(b.split(b.slice(x, 1, 0, tokens), exchange.planes, axis=3))
    return taken


@pytest.mark.parametrize("exchange", EXCHANGES[:-1], ids=str)
def test_pack_moves_the_same_bits(both: Any, exchange: Exchange) -> None:
    def build(b: GraphBuilder, *streams: Tensor) -> Tensor:
        return b.cast(b.pack(exchange, planes(b, exchange, streams)), "f32")

    cpu, cuda = both(build, *streams_of(exchange))
    np.testing.assert_array_equal(cuda, cpu)


@pytest.mark.parametrize("exchange", EXCHANGES[:-1], ids=str)
def test_receive_moves_the_same_bits(both: Any, exchange: Exchange) -> None:
    def build(b: GraphBuilder, buffer: Tensor) -> Tensor:
        return b.receive_planes(exchange, b.cast(buffer, exchange.buffer_dtype))

    cpu, cuda = both(build, random(max(1, exchange.head_rows * exchange.elements_per_row)))
    np.testing.assert_array_equal(cuda, cpu)


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_the_way_back_moves_the_same_bits(both: Any, exchange: Exchange) -> None:
    outward = replace(exchange, wire=exchange.wire[:1])

    def pack(b: GraphBuilder, joint: Tensor) -> Tensor:
        return b.cast(b.pack_heads(outward, joint), "f32")

    def receive(b: GraphBuilder, buffer: Tensor) -> Tensor:
        outputs = b.receive_streams(outward, b.cast(buffer, outward.buffer_dtype))
        return b.concat([b.reshape(x, (x.count,)) for x in outputs], 0)

    joint = random(exchange.batch, sum(exchange.tokens), exchange.local_heads, exchange.head_dim)
    for build, x in ((pack, joint), (receive, random(outward.sequence_rows * outward.elements_per_row))):
        cpu, cuda = both(build, x)
        np.testing.assert_array_equal(cuda, cpu)


@pytest.mark.parametrize("place", ["pack", "receive", "planes"])
@pytest.mark.parametrize("wire", [("f32",) * 3, ("f32", "f32", "bf16"), ("f16",) * 3], ids=str)
@pytest.mark.parametrize("head_dim", [128, 64, 6])
def test_norm_and_rotation_agree(both: Any, place: str, wire: tuple[str, ...], head_dim: int) -> None:
    exchange = Exchange(1, 0, (5, 40), 3, head_dim, 2, False, wire)
    weights = [1 + 0.1 * random(head_dim, seed=seed) for seed in range(4)]

    def build(b: GraphBuilder, *inputs: Tensor) -> Tensor:
        tables = tuple(
            b.rope_table(x, [periods]) for x, periods in zip(inputs[2:4], inputs[4:6], strict=True)
        )
        leaves = [b.constant(f"norm{i}", weight) for i, weight in enumerate(weights)]
        norms = ((leaves[0], leaves[1], None), (leaves[2], leaves[3], None))
        preparation = Preparation(norms, (True, True, False), tables)
        taken = planes(b, exchange, inputs[:2])
        if place == "planes":
            return b.pack_planes(exchange, taken, preparation)
        buffer = b.pack(exchange, taken, preparation if place == "pack" else None)
        return b.receive_planes(exchange, buffer, preparation=preparation if place == "receive" else None)

    positions = [np.arange(count, dtype=np.int32)[None] * 3 for count in exchange.tokens]
    periods = [(10000.0 ** (np.arange(head_dim // 2) * 2 / head_dim)).astype(np.float32)] * 2
    cpu, cuda = both(build, *streams_of(exchange), *positions, *periods)
    # where the wire rounds, a last bit before the rounding may become one after it
    coarse = {"f32": 0.0, "f16": 2.0**-10, "bf16": 2.0**-7}[max(wire, key=["f32", "f16", "bf16"].index)]
    np.testing.assert_allclose(cuda, cpu, atol=1e-6, rtol=max(1e-6, coarse))


@pytest.mark.parametrize("channels", [3072, 1024, 70, 1])
def test_modulation_and_gate_agree_with_stock_nodes(both: Any, channels: int) -> None:
    def modulate(b: GraphBuilder, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return b.modulate(x, scale, shift, 1e-6)

    def gate(b: GraphBuilder, x: Tensor, gate: Tensor, update: Tensor) -> Tensor:
        return b.gated_residual(x, gate, update)

    x, row, update = random(2, 9, channels), random(2, 1, channels), random(2, 9, channels, seed=1)
    for cpu_ops in ("fused", "generic"):
        cpu, cuda = both(modulate, x, row, random(2, 1, channels, seed=2), ops="fused", cpu_ops=cpu_ops)
        np.testing.assert_allclose(cuda, cpu, atol=3e-6, rtol=1e-6)  # a mean over thousands of values
        cpu, cuda = both(gate, x, row, update, ops="fused", cpu_ops=cpu_ops)
        np.testing.assert_allclose(cuda, cpu, **CLOSE)


def test_rope_tables_agree(both: Any) -> None:
    def build(b: GraphBuilder, positions: Tensor, *periods: Tensor) -> Tensor:
        return b.rope_table(positions, periods)

    positions = np.stack([np.zeros(100), np.arange(100), 100 - np.arange(100)]).astype(np.int32)
    periods = [(10000.0 ** (np.arange(n) / n)).astype(np.float32) for n in (8, 28, 28)]
    cpu, cuda = both(build, positions, *periods)
    np.testing.assert_allclose(cuda, cpu, **CLOSE)


@pytest.mark.parametrize("head_dim, heads, queries, keys", [(64, 3, 7, 130), (128, 2, 33, 65), (40, 1, 1, 1)])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_attention_with_the_logarithms_of_its_sums_agrees(
    both: Any, head_dim: int, heads: int, queries: int, keys: int, dtype: str
) -> None:
    mask = np.where(random(2, 1, queries, keys, seed=9) > 1, -np.inf, 0).astype(np.float32)
    mask[0, 0, 0] = -np.inf  # a query without any key

    def build(b: GraphBuilder, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return b.attention_partial(q, b.cast(k, dtype), b.cast(v, dtype), mask=mask)

    shapes = ((2, queries, heads, head_dim), (2, keys, heads, head_dim), (2, keys, heads, head_dim))
    arrays = [random(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    cpu, cuda = both(build, *arrays, mask)
    np.testing.assert_allclose(cuda, cpu, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_merged_parts_agree(both: Any, dtype: str) -> None:
    parts = [random(2, 5, 3, 65, seed=seed) for seed in range(3)]
    parts[0][:, :2, :, -1] = -np.inf
    parts[1][:, 1:3, :, -1] = -np.inf

    def build(b: GraphBuilder, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
        merged = b.attention_merge(b.scale(first, 1.0), second)
        return b.cast(b.attention_merged(merged, third, dtype), "f32")

    cpu, cuda = both(build, *parts)
    np.testing.assert_allclose(cuda, cpu, atol=1e-6 if dtype == "f32" else 2e-2, rtol=1e-6)
