"""Modulation, gated residual and rope tables against their generic twins, and the choice between the two."""

import numpy as np
import pytest
from graph_runner import random, run_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedit.graph.builder import GraphBuilder
from edgedit.graph.planner import plan
from edgedit.graph.registry import OPERATORS
from edgedit.sequence.local import Local
from edgedit.sequence.strategy import Rope, Stream

TOLERANCE = {"atol": 1e-6, "rtol": 1e-6}


def twins(build, *arrays, threads=1):
    """Results of `build` with fused and with generic nodes."""
    results = []
    for ops in ("fused", "generic"):

        def chosen(b, *inputs, ops=ops):
            b.ops = ops
            return build(b, *inputs)

        results.append(run_graph(chosen, *arrays, threads=threads))
    return results


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 300), st.integers(1, 3))
def test_modulate(batch, tokens, channels, threads):
    x = random(batch, tokens, channels) * 3 + 1
    pair = random(batch, 1, 2 * channels, seed=1)

    def build(b, x, pair):
        scale, shift = b.split(pair, 2, axis=2)
        return b.modulate(x, scale, shift, 1e-6)

    fused, generic = twins(build, x, pair, threads=threads)
    scale, shift = np.split(pair.astype(np.float64), 2, axis=2)
    centred = x - x.mean(-1, keepdims=True, dtype=np.float64)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * (1 + scale) + shift
    if channels > 2:  # of one or two channels the norm is 0/0 or a sign, up to epsilon
        np.testing.assert_allclose(fused, generic, **TOLERANCE)
        np.testing.assert_allclose(fused, expected, atol=3e-6, rtol=3e-6)
    else:
        np.testing.assert_allclose(fused, expected, atol=1e-3)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 300), st.integers(1, 3))
def test_gated_residual(batch, tokens, channels, threads):
    x, update = random(batch, tokens, channels), random(batch, tokens, channels, seed=2)
    gates = random(batch, 1, 3 * channels, seed=1)

    def build(b, x, update, gates):
        return b.gated_residual(x, b.split(gates, 3, axis=2)[1], update)

    fused, generic = twins(build, x, update, gates, threads=threads)
    gate = gates[:, :, channels : 2 * channels].astype(np.float64)
    np.testing.assert_allclose(fused, generic, **TOLERANCE)
    np.testing.assert_allclose(fused, x + gate * update, **TOLERANCE)


def test_rope_table():
    places = np.array([[0, 1, 2, 500], [3, 0, 7, 4095]], np.int32)
    periods = [np.array([1, 10, 100], np.float32), np.array([1, 7], np.float32)]

    def build(b, places):
        table = b.rope_table(places, [b.constant(f"p{i}", p) for i, p in enumerate(periods)])
        return b.scale(table, 1.0)

    pairs = zip(places.astype(np.float32), periods, strict=True)
    angles = np.concatenate([place[:, None] / p for place, p in pairs], 1).astype(np.float64)
    expected = np.stack([np.cos(angles), np.sin(angles)], -1)
    for threads in (1, 3):
        np.testing.assert_allclose(run_graph(build, places, threads=threads), expected, **TOLERANCE)


def streams_of(b, heads=2, head_dim=8, count=2, norm=None, rope=True):
    made = []
    for i in range(count):
        places = b.input(f"places{i}", (1, 3), "i32")
        periods = (b.constant(f"periods{i}", np.ones(head_dim // 2, np.float32)),)
        planes = (b.input(f"{name}{i}", (1, 3, heads, head_dim)) for name in "qkv")
        made.append(Stream(*planes, 3, Rope(places, periods) if rope else None, norm, norm))
    return made


def ops_of(b):
    return {node.op for node in b.nodes}


def test_generic_graphs_hold_no_fused_node():
    b = GraphBuilder("test", ops="generic")
    Local().attention(b, streams_of(b))
    assert not ops_of(b) & set(OPERATORS) and not b.fusion_reasons


@pytest.mark.parametrize(
    "changes, reason",
    [({"head_dim": 1026}, "head dim 1026; at most 1024"), ({"count": 5}, "5 streams; at most 4")],
)
def test_what_an_operator_does_not_take_falls_back_with_a_reason(changes, reason):
    b = GraphBuilder("test")
    Local().attention(b, streams_of(b, **changes))
    assert "pack" not in ops_of(b) and b.fusion_reasons == {"pack": reason}


def test_a_norm_weight_that_is_computed_falls_back():
    b = GraphBuilder("test")
    weight = b.scale(b.constant("weight", np.ones(8, np.float32)), 2.0)
    Local().attention(b, streams_of(b, norm=weight))
    assert b.fusion_reasons == {"pack": "norm weights that are no f32 leaves"}


def test_blocks_share_one_rope_table_per_stream():
    b = GraphBuilder("test")
    streams = streams_of(b)
    for _ in range(3):
        Local().attention(b, streams)
    assert sum(node.op == "rope_table" for node in b.nodes) == 2


def test_the_planner_counts_and_places_fused_nodes_as_compute():
    b = GraphBuilder("test")
    outputs = Local().attention(b, streams_of(b, norm=b.constant("norm", np.ones(8, np.float32))))
    nodes = [b.output(f"y{i}", b.mul(out, out)).node for i, out in enumerate(outputs)]
    schedule = plan(b.nodes, b.collectives, nodes)
    place = {b.nodes[index].op: position for position, index in enumerate(schedule.order)}
    (attention,) = {"attention", "flash_attn_ext"} & place.keys()
    assert place["rope_table"] < place["pack"] < place[attention]
    elements = 2 * 3 * 2 * 8  # streams x tokens x heads x channels, of q and of k
    (pack,) = [node for node in b.nodes if node.op == "pack"]
    assert pack.flops == 2 * 3 * elements  # norm, weight, rotation
    assert pack.nbytes == 3 * elements * 4


def test_an_unknown_choice_is_refused():
    with pytest.raises(ValueError, match="ops is 'fast'; legal: auto, fused, generic"):
        GraphBuilder("test", ops="fast")
