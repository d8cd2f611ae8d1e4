"""Ulysses attention on ranks that are threads, against plain softmax attention in double precision."""

import numpy as np
import pytest
from graph_runner import random
from test_builder_ops import attention

from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.executor import Executor
from edgedit.parallel.context import ParallelContext
from edgedit.sequence.local import Local
from edgedit.sequence.split import SPSequenceSplit
from edgedit.sequence.strategy import Rope, Stream
from edgedit.sequence.ulysses import Ulysses

HEAD_DIM = 8


def joint_attention(
    size, lengths, heads, batch=1, wire_dtype="f32", mode="uneven", poison=None, change=None, strategy=None
):
    """Each stream's whole output [B, S_i, C] as all ranks of `size` see it alike, and the streams' whole q, k, v.

    `poison` fills the padding of pad mode; `change` = (stream, token) alters one token's q, k and v.
    """
    whole = [
        [random(batch, n, heads, HEAD_DIM, seed=10 * i + plane) for plane in range(3)]
        for i, n in enumerate(lengths)
    ]
    if change:
        for plane in whole[change[0]]:
            plane[:, change[1]] += 1

    def run(context):
        group = context.group("ulysses")
        chosen = strategy or (Ulysses(size, group.rank, wire_dtype, mode) if size > 1 else Local())
        b = GraphBuilder("attention")
        streams, values = [], {}
        for index, (planes, length) in enumerate(zip(whole, lengths, strict=True)):
            split = SPSequenceSplit(length, size, group.rank, mode)
            shares = []
            for name, plane in zip("qkv", planes, strict=True):
                values[f"{name}{index}"] = share = slots_of(plane, split, poison)
                shares.append(b.input(f"{name}{index}", share.shape))
            streams.append(Stream(*shares, length))
        outputs = chosen.attention(b, streams)
        for index, (out, length) in enumerate(zip(outputs, lengths, strict=True)):
            with b.scope(f"stream{index}"):
                b.output(f"out{index}", b.contiguous(chosen.gather(b, out, length)))
        executor = Executor(b, CpuBackend(1), context, degree=size)
        result = executor.run(values)
        keys = [node.shape for node in b.nodes if node.op == "flash_attn_ext"]
        return [result[f"out{index}"] for index in range(len(lengths))], keys

    ranks = ParallelContext.local(size, run, ulysses_degree=size)
    for outputs, _ in ranks[1:]:
        for mine, first in zip(outputs, ranks[0][0], strict=True):
            np.testing.assert_array_equal(mine, first)
    return ranks[0][0], whole


def slots_of(plane, split, poison):
    slots = np.full(
        (plane.shape[0], split.local_length, *plane.shape[2:]), 0.0 if poison is None else poison, np.float32
    )
    count = split.valid_lengths[split.rank]
    slots[:, :count] = plane[:, split.local_offset : split.local_offset + count]
    return slots


def oracle(whole, lengths):
    q, k, v = (np.concatenate([planes[plane] for planes in whole], 1) for plane in range(3))
    return np.split(attention(q, k, v), np.cumsum(lengths)[:-1], axis=1)


def assert_close(outputs, expected, atol=1e-6):
    for mine, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 17, 97, 105])
def test_any_length_on_any_number_of_ranks(size, length):
    outputs, whole = joint_attention(size, (length,), heads=12)
    assert_close(outputs, oracle(whole, (length,)))


@pytest.mark.parametrize("text", [1, 5, 7, 8, 9])
@pytest.mark.parametrize("mode", ["uneven", "pad"])
def test_text_and_image_join(text, mode):
    lengths = (text, 16)
    outputs, whole = joint_attention(4, lengths, heads=5, batch=2, mode=mode)
    assert_close(outputs, oracle(whole, lengths))


@pytest.mark.parametrize("text", [77, 256, 512])
def test_text_limits(text):
    lengths = (text, 30)
    outputs, whole = joint_attention(3, lengths, heads=4)
    assert_close(outputs, oracle(whole, lengths))


@pytest.mark.parametrize("heads, size", [(2, 2), (12, 5), (24, 7), (30, 4)])
def test_uneven_heads(heads, size):
    outputs, whole = joint_attention(size, (3, 11), heads)
    assert_close(outputs, oracle(whole, (3, 11)))


def test_three_streams_and_a_batch():
    lengths = (2, 5, 9)
    outputs, whole = joint_attention(3, lengths, heads=4, batch=3)
    assert_close(outputs, oracle(whole, lengths))


@pytest.mark.parametrize("wire_dtype, error", [("f16", 2e-3), ("bf16", 2e-2)])
def test_a_narrow_wire_rounds_but_no_more(wire_dtype, error):
    lengths = (5, 16)
    outputs, whole = joint_attention(3, lengths, heads=4, wire_dtype=wire_dtype)
    for mine, exact in zip(outputs, oracle(whole, lengths), strict=True):
        assert 1e-6 < np.linalg.norm(mine - exact) / np.linalg.norm(exact) < error


@pytest.mark.parametrize("length", [17, 9])
@pytest.mark.parametrize("poison", [1e4, np.nan])
def test_not_one_bit_of_padding_reaches_the_output(length, poison):
    """9 tokens on 4 ranks: the last rank's share is all padding."""
    clean, _ = joint_attention(4, (length,), heads=4, mode="pad", poison=0.0)
    poisoned, _ = joint_attention(4, (length,), heads=4, mode="pad", poison=poison)
    np.testing.assert_array_equal(clean[0], poisoned[0])


@pytest.mark.parametrize("size", [2, 4])
def test_joint_attention_sees_each_token_once(size):
    """4 text and 16 image tokens: 20 keys on every rank, never 16 + size x 4."""

    def run(context):
        group = context.group("ulysses")
        b = GraphBuilder("attention", kernels="ggml")
        streams = []
        for index, length in enumerate((4, 16)):
            shape = (1, SPSequenceSplit(length, size, group.rank).local_length, 4, HEAD_DIM)
            streams.append(Stream(*(b.input(f"{name}{index}", shape) for name in "qkv"), length))
        Ulysses(size, group.rank).attention(b, streams)
        return [b.nodes[node.inputs[1]].shape for node in b.nodes if node.op == "flash_attn_ext"]

    for keys in ParallelContext.local(size, run, ulysses_degree=size):
        assert keys == [(1, 4 // size, 20, HEAD_DIM)]  # [B, h, Sk, D]


@pytest.mark.parametrize("size", [2, 3])
def test_every_token_reaches_the_outputs_of_every_rank(size):
    lengths = (size, 2 * size)
    base, _ = joint_attention(size, lengths, heads=4)
    for stream, length in enumerate(lengths):
        for rank in range(size):
            token = SPSequenceSplit(length, size, rank).local_offset
            changed, _ = joint_attention(size, lengths, heads=4, change=(stream, token))
            for before, after in zip(base, changed, strict=True):
                assert (np.abs(before - after).max(axis=(0, 2)) > 1e-6).all()


@pytest.mark.parametrize("size", [2, 3])
def test_norm_and_rotation_use_the_positions_of_the_whole_stream(size):
    length, heads = 7, 3
    q, k, v = (random(1, length, heads, HEAD_DIM, seed=s) for s in range(3))
    weight = random(HEAD_DIM, seed=9)
    places = np.stack([np.arange(length), np.arange(length) * 3 % 5]).astype(np.int32)
    periods = [np.array([1, 10], np.float32), np.array([1, 7], np.float32)]

    def run(context):
        group = context.group("ulysses")
        strategy = Ulysses(size, group.rank) if group.size > 1 else Local()
        b = GraphBuilder("attention")
        rope = Rope(
            strategy.split(b, b.input("places", (2, length), "i32"), 1),
            tuple(b.constant(f"periods{axis}", values) for axis, values in enumerate(periods)),
        )
        shares = [
            strategy.split(b, b.input(name, x.shape), 1) for name, x in zip("qkv", (q, k, v), strict=True)
        ]
        norm = b.constant("norm", weight)
        (out,) = strategy.attention(b, [Stream(*shares, length, rope, norm, norm)])
        b.output("out", b.contiguous(strategy.gather(b, out, length)))
        return Executor(b, CpuBackend(1), context, degree=group.size).run(
            {"q": q, "k": k, "v": v, "places": places}
        )

    def prepared(x):
        x = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6) * weight
        for axis in range(2):
            angle = places[axis][:, None, None] / periods[axis].astype(np.float64)
            pair = x[..., 4 * axis : 4 * axis + 4]
            even, odd = pair[..., 0::2].copy(), pair[..., 1::2].copy()
            pair[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
            pair[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
        return x

    expected = attention(prepared(q), prepared(k), v)
    for result in ParallelContext.local(size, run, ulysses_degree=size):
        np.testing.assert_allclose(result["out"], expected, atol=2e-6, rtol=1e-5)
