"""pack and receive on ranks that are threads: equal to their generic twin, and to numpy."""

import numpy as np
import pytest
from graph_runner import random
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgedit.errors import EdgeditError
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.executor import Executor
from edgedit.graph.ops.exchange import Preparation
from edgedit.parallel.context import ParallelContext
from edgedit.sequence import exchange as generic
from edgedit.sequence import fused
from edgedit.sequence.layouts import Direction, SPAllToAll4DBatchLayout
from edgedit.sequence.split import SPSequenceSplit
from edgedit.sequence.strategy import Rope, Stream
from edgedit.sequence.ulysses import Ulysses

PREPARED = {"atol": 1e-6, "rtol": 1e-6}
EXACT = {"atol": 0, "rtol": 0}


def on_ranks(size, build, inputs, threads=1):
    """Outputs by name of every rank; `build(b, rank)` adds nodes, `inputs(rank)` gives values."""

    def run(context):
        rank = context.group("ulysses").rank
        b = GraphBuilder("test")
        build(b, rank)
        return Executor(b, CpuBackend(threads), context, degree=size).run(inputs(rank))

    return ParallelContext.local(size, run, ulysses_degree=size)


class Streams:
    """Whole streams of random values, and each rank's part of them in a graph."""

    def __init__(self, size, tokens, heads, head_dim, batch=1, mode="uneven", dtype="f32"):
        self.size, self.tokens, self.heads, self.head_dim = size, tokens, heads, head_dim
        self.batch, self.mode, self.dtype = batch, mode, dtype
        self.whole = [  # [stream][plane][B, S, H, D]
            [random(batch, count, heads, head_dim, seed=3 * i + plane) for plane in range(3)]
            for i, count in enumerate(tokens)
        ]
        self.places = [np.arange(2 * n, dtype=np.int32).reshape(2, n) * 7 % 11 for n in tokens]
        self.periods = [10.0 ** np.arange(head_dim // 2 - head_dim // 4), 3.0 ** np.arange(head_dim // 4)]
        self.weights = [
            [1 + random(head_dim, seed=50 + 2 * i + k) / 4 for k in range(2)] for i in range(len(tokens))
        ]

    def splits(self, rank):
        return tuple(SPSequenceSplit(count, self.size, rank, self.mode) for count in self.tokens)

    def layout(self, rank, forward=True):
        direction = Direction.SEQ_TO_HEAD if forward else Direction.HEAD_TO_SEQ
        planes = 3 if forward else 1
        return SPAllToAll4DBatchLayout(
            direction, self.splits(rank), self.heads, self.head_dim, planes, self.batch
        )

    def values(self, rank):
        """One projection q | k | v per stream, so that its planes are strided; padding is NaN."""
        given = {}
        width = self.heads * self.head_dim
        for i, split in enumerate(self.splits(rank)):
            begin, count = split.local_offset, split.valid_lengths[rank]
            slots = np.full((self.batch, split.local_length, 3 * width), np.nan, np.float32)
            parts = [
                plane[:, begin : begin + count].reshape(self.batch, count, width) for plane in self.whole[i]
            ]
            slots[:, :count] = np.concatenate(parts, 2)
            places = np.zeros((2, split.local_length), np.int32)
            places[:, :count] = self.places[i][:, begin : begin + count]
            given |= {f"qkv{i}": slots, f"places{i}": places}
        return given

    def add(self, b, rank, normed, rotated):
        streams = []
        for i, split in enumerate(self.splits(rank)):
            width = self.heads * self.head_dim
            qkv = b.cast(b.input(f"qkv{i}", (self.batch, split.local_length, 3 * width)), self.dtype)
            places = b.input(f"places{i}", (2, split.local_length), "i32")
            periods = tuple(
                b.constant(f"periods{i}{a}", p.astype(np.float32)) for a, p in enumerate(self.periods)
            )
            size = 4 if self.dtype == "f32" else 2
            shape = (self.batch, split.local_length, self.heads, self.head_dim)
            strides = (
                split.local_length * 3 * width * size, 3 * width * size, self.head_dim * size, size
            )  # fmt: skip
            planes = [b.view(qkv, shape, strides, plane * width * size) for plane in range(3)]
            norms = [b.constant(f"norm{i}{k}", w) if normed else None for k, w in enumerate(self.weights[i])]
            streams.append(
                Stream(*planes, self.tokens[i], Rope(places, periods) if rotated else None, *norms)
            )
        return streams

    def expected(self, rank, normed, rotated):
        """[3 * B, h, S, D] in double precision."""
        split = SPSequenceSplit(self.heads, self.size, rank)
        mine = slice(split.local_offset, split.local_offset + split.local_length)
        planes = []
        for plane in range(3):
            parts = []
            for i, stream in enumerate(self.whole):
                x = stream[plane][:, :, mine].astype(np.float64)
                if plane < 2 and normed:
                    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * self.weights[i][plane]
                if plane < 2 and rotated:
                    x = self.rotate(x, i)
                parts.append(x)
            planes.append(np.concatenate(parts, 1).transpose(0, 2, 1, 3))
        return np.concatenate(planes)

    def rotate(self, x, stream):
        angles = np.concatenate(
            [place[:, None] / p for place, p in zip(self.places[stream], self.periods, strict=True)], 1
        )[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = (even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles))
        return np.stack(turned, -1).reshape(x.shape)


@st.composite
def cases(draw):
    size = draw(st.integers(1, 5))
    return dict(
        size=size,
        tokens=tuple(draw(st.lists(st.integers(1, 17), min_size=1, max_size=4))),
        heads=draw(st.integers(size, size + 4)),
        head_dim=draw(st.sampled_from([4, 6, 16, 40])),
        batch=draw(st.integers(1, 2)),
        mode=draw(st.sampled_from(["uneven", "pad"])),
    )


@settings(max_examples=40, deadline=None)
@given(cases(), st.sampled_from(["f32", "f16", "bf16"]), st.booleans(), st.booleans(), st.integers(1, 3))
@example(dict(size=4, tokens=(1,), heads=4, head_dim=16), "f32", True, True, 1)
def test_planes_equal_the_generic_twin_and_numpy(case, wire, normed, rotated, threads):
    streams = Streams(**case)

    def build(b, rank):
        added, layout = streams.add(b, rank, normed, rotated), streams.layout(rank)
        exchange = fused.exchange_of(layout, (wire,) * 3)
        assert fused.fuses(b, exchange, added)
        with b.scope("fused"):
            b.output("fused", fused.streams_to_heads(b, layout, exchange, added, "ulysses"))
        with b.scope("generic"):
            prepared = [s.prepared(b) for s in added]
            joint = generic.streams_to_heads(b, layout, prepared, "ulysses", wire)
            b.output(
                "generic",
                b.concat([b.contiguous(b.permute(x, (0, 2, 1, 3))) for x in b.split(joint, 3, 3)], 0),
            )

    tolerance = PREPARED if normed or rotated else EXACT
    for rank, out in enumerate(on_ranks(case["size"], build, streams.values, threads)):
        if wire == "f32":
            np.testing.assert_allclose(out["fused"], out["generic"], **tolerance)
            expected = streams.expected(rank, normed, rotated)
            np.testing.assert_allclose(out["fused"], expected, atol=3e-6, rtol=3e-6)
        elif tolerance is EXACT:
            np.testing.assert_array_equal(out["fused"], out["generic"])
        else:  # the last bit before rounding may decide the rounding
            step = {"f16": 2.0**-10, "bf16": 2.0**-7}[wire]
            np.testing.assert_allclose(out["fused"], out["generic"], atol=1e-6, rtol=step)


@settings(max_examples=30, deadline=None)
@given(cases(), st.sampled_from(["f32", "f16", "bf16"]), st.integers(1, 3))
def test_the_way_back_equals_the_generic_twin(case, wire, threads):
    streams = Streams(**case)
    size = case["size"]

    def joint_of(rank):
        split = SPSequenceSplit(streams.heads, size, rank)
        joint = np.concatenate([stream[0] for stream in streams.whole], 1)
        return np.ascontiguousarray(joint[:, :, split.local_offset : split.local_offset + split.local_length])

    def build(b, rank):
        layout = streams.layout(rank, forward=False)
        joint = b.input("joint", joint_of(rank).shape)
        exchange = fused.exchange_of(layout, (wire,))
        with b.scope("fused"):
            outputs = fused.heads_to_streams(b, layout, exchange, joint, "ulysses")
        with b.scope("generic"):
            twins = generic.heads_to_streams(b, layout, joint, "ulysses", wire)
        for i, (mine, theirs) in enumerate(zip(outputs, twins, strict=True)):
            b.output(f"fused{i}", mine)
            b.output(f"generic{i}", theirs)

    def inputs(rank):
        return {"joint": joint_of(rank)}

    for rank, out in enumerate(on_ranks(size, build, inputs, threads)):
        for i, split in enumerate(streams.splits(rank)):
            count = split.valid_lengths[rank]  # padding comes back as whatever it is
            theirs = out[f"generic{i}"][:, :count]  # [B, s, H, D]
            mine = out[f"fused{i}"][:, :count].reshape(theirs.shape)
            np.testing.assert_array_equal(mine, theirs)
            if wire == "f32":
                whole = streams.whole[i][0][:, split.local_offset : split.local_offset + count]
                np.testing.assert_array_equal(mine, whole)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_receive_prepares_as_pack_does(size, dtype):
    """Norm and rotation on either side of the wire, from sources of any type."""
    streams = Streams(size, (5, 11), 4, 16, batch=2, dtype=dtype)

    def build(b, rank):
        added, layout = streams.add(b, rank, True, True), streams.layout(rank)
        exchange = fused.exchange_of(layout, ("f32",) * 3)
        with b.scope("pack"):
            b.output("pack", fused.streams_to_heads(b, layout, exchange, added, "ulysses"))
        tables = tuple(
            b.rope_table(b.constant(f"all{i}", places), added[i].rope.periods)
            for i, places in enumerate(streams.places)
        )
        norms = tuple((s.q_norm, s.k_norm, None) for s in added)
        later = Preparation(norms, (True, True, False), tables)
        with b.scope("receive"):
            send = b.pack(exchange, [(s.q, s.k, s.v) for s in added])
            received = fused._all_to_all(b, layout, exchange, send, "ulysses")
            b.output("receive", b.receive_planes(exchange, received, preparation=later))

    for out in on_ranks(size, build, streams.values):
        np.testing.assert_array_equal(out["pack"], out["receive"])


@pytest.mark.parametrize("size", [1, 3])
def test_planes_of_unlike_types_share_a_wire(size):
    """q and k in f16, v in f32: each as if it had travelled alone, q into f32 and k into f16."""
    streams = Streams(size, (5, 7), 3, 6)

    def build(b, rank):
        added, layout = streams.add(b, rank, False, False), streams.layout(rank)
        exchange = fused.exchange_of(layout, ("f16", "f16", "f32"))
        send = b.pack(exchange, [(s.q, s.k, s.v) for s in added])
        received = fused._all_to_all(b, layout, exchange, send, "ulysses")
        b.output("q", b.receive_planes(exchange, received, "f32", range(1)))
        b.output("k", b.receive_planes(exchange, received, "f16", range(1, 2)))
        b.output("v", b.receive_planes(exchange, received, "f32", range(2, 3)))

    for rank, out in enumerate(on_ranks(size, build, streams.values)):
        q, k, v = streams.expected(rank, False, False).astype(np.float32)
        np.testing.assert_array_equal(out["q"][0], q.astype(np.float16).astype(np.float32))
        np.testing.assert_array_equal(out["k"][0], k.astype(np.float16))
        np.testing.assert_array_equal(out["v"][0], v)


@pytest.mark.parametrize("wire", ["bf16", ("f16", "f16", "f32"), ("f32", "bf16", "f16")])
def test_attention_rounds_as_its_generic_twin_does(wire):
    streams = Streams(3, (5, 11), 4, 16, batch=2)
    results = []
    for ops in ("fused", "generic"):

        def build(b, rank, ops=ops):
            b.ops, b.kernels = ops, "ggml"  # attention itself is the same
            outputs = Ulysses(3, rank, wire).attention(b, streams.add(b, rank, False, False))
            for i, out in enumerate(outputs):
                b.output(f"out{i}", out)

        results.append(on_ranks(3, build, streams.values))
    for fused_rank, generic_rank in zip(*results, strict=True):
        for name, out in fused_rank.items():
            np.testing.assert_array_equal(out, generic_rank[name])


def test_one_rank_needs_no_exchange():
    streams = Streams(1, (5, 11, 2), 3, 16, batch=2)

    def build(b, rank):
        added = streams.add(b, rank, True, True)
        exchange = fused.exchange_of(streams.layout(rank), ("f32",) * 3)
        b.output("alone", fused.joint_planes(b, exchange, added))
        b.output("received", fused.streams_to_heads(b, streams.layout(rank), exchange, added, "ulysses"))

    (out,) = on_ranks(1, build, streams.values)
    np.testing.assert_array_equal(out["alone"], out["received"])


def test_ranks_that_disagree_on_the_operators_are_told():
    streams = Streams(2, (6,), 2, 4)

    def run(context):
        rank = context.group("ulysses").rank
        b = GraphBuilder("test", ops=["fused", "generic"][rank])
        (out,) = Ulysses(2, rank).attention(b, streams.add(b, rank, True, True))
        b.output("out", out)
        with pytest.raises(EdgeditError, match="ops=fused:f32,f32,f32:prepared"):
            Executor(b, CpuBackend(1), context, degree=2)

    ParallelContext.local(2, run, ulysses_degree=2)
