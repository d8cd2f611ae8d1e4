"""Every way of sharing tokens among ranks, which are threads here, against attention in double precision."""

import numpy as np
import pytest
from graph_runner import random
from joint_attention import Problem

from edgedit.parallel.context import ParallelContext
from edgedit.sequence.split import SPSequenceSplit

DEGREES = {
    "ulysses": {"ulysses": 4},
    "ring": {"ring": 4},
    "kv_gather": {"kv_gather": 4},
    "ulysses and ring": {"ring": 2, "ulysses": 2},
    "ulysses and kv_gather": {"kv_gather": 2, "ulysses": 2},
}
strategies = pytest.mark.parametrize("degrees", DEGREES.values(), ids=DEGREES)
both_ops = pytest.mark.parametrize("ops", ["fused", "generic"])


def assert_close(outputs, expected, atol=1e-5):
    for mine, theirs in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=atol, rtol=0)


def sharing(degrees, size):
    """The same axes over another number of ranks: all of them on one axis, or half of them on each of two."""
    if len(degrees) == 1:
        return dict.fromkeys(degrees, size)
    outer, inner = degrees
    return {outer: 2, inner: size // 2}


@strategies
@pytest.mark.parametrize("sizes", [(3, 4), (7, 6), pytest.param((2, 8), marks=pytest.mark.slow),
                                   pytest.param((5, 10), marks=pytest.mark.slow)])  # fmt: skip
@pytest.mark.parametrize("length", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 7, 97)), 3, 17, 105])
def test_any_length_on_any_number_of_ranks(degrees, sizes, length):
    """One token on seven ranks: six own nothing."""
    problem = Problem((length,), heads=7)
    size = sizes[len(degrees) - 1]
    assert_close(problem.run(sharing(degrees, size)), problem.expected())


@strategies
@both_ops
@pytest.mark.parametrize("text", [1, 9, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 7, 8))])
@pytest.mark.parametrize("mode", ["uneven", "pad"])
def test_text_and_image_join(degrees, ops, text, mode):
    problem = Problem((text, 16), heads=5, batch=3)
    assert_close(problem.run(degrees, mode=mode, ops=ops), problem.expected())


@strategies
@pytest.mark.parametrize("text", [77, pytest.param(256, marks=pytest.mark.slow), 512])
def test_text_limits(degrees, text):
    problem = Problem((text, 30))
    assert_close(problem.run(degrees), problem.expected())


@strategies
@both_ops
def test_three_streams_and_a_batch(degrees, ops):
    problem = Problem((2, 1, 9), batch=3)
    assert_close(problem.run(degrees, ops=ops), problem.expected())


def masks(length, heads, batch):
    """By name: what concerns keys only, what concerns heads, a triangle, and keys of which a rank has none left."""
    keys = np.where(np.arange(length) % 3 == 1, -np.inf, 0)
    half = np.where(np.arange(length) < length // 2, -np.inf, 0)
    return {
        "keys": keys[None],
        "scores": random(length, length),
        "heads": random(batch, heads, 1, length),
        "triangle": np.where(np.tri(length) > 0, 0, -np.inf)[None],
        "half": half[None],
    }


@strategies
@both_ops
@pytest.mark.parametrize("lengths", [(5, 12), (1, 2)], ids=["17 tokens", "3 tokens"])
@pytest.mark.parametrize("name", masks(1, 1, 1))
def test_masks(degrees, ops, lengths, name):
    """Of three tokens, two or three ranks have none."""
    heads, batch = 4, 3
    mask = masks(sum(lengths), heads, batch)[name].astype(np.float32)
    problem = Problem(lengths, heads, batch)
    assert_close(problem.run(degrees, mask, ops=ops), problem.expected(mask))


@strategies
def test_a_query_without_any_key_gives_nothing(degrees):
    mask = np.zeros((17, 17), np.float32)
    mask[[0, 6, 16]] = -np.inf
    problem = Problem((5, 12))
    assert_close(problem.run(degrees, mask, kernels="portable"), problem.expected(mask))


@strategies
@both_ops
@pytest.mark.parametrize("replicated", [(1,), (0, 2), (0, 1, 2)])
def test_streams_that_every_rank_holds(degrees, ops, replicated):
    problem = Problem((3, 9, 6), heads=5, batch=2, replicated=replicated)
    expected = problem.expected()
    if len(replicated) == 3:
        degrees = dict.fromkeys(degrees, 1)  # nothing is left to share
    for outputs in problem.run_ranks(degrees, ops=ops):
        assert_close(outputs, expected)


@strategies
@pytest.mark.parametrize("length", [17, 9])
@pytest.mark.parametrize("poison", [1e4, np.nan])
def test_not_one_bit_of_padding_reaches_the_output(degrees, length, poison):
    """9 tokens on 4 ranks: the last rank's share is all padding."""
    problem = Problem((length,))
    clean, poisoned = (problem.run(degrees, mode="pad", poison=values) for values in (0.0, poison))
    np.testing.assert_array_equal(clean[0], poisoned[0])


@strategies
def test_every_token_reaches_the_outputs_of_every_rank(degrees):
    size = 4
    lengths = (size, 2 * size)
    base = Problem(lengths).run(sharing(degrees, size))
    for stream, length in enumerate(lengths):
        for rank in range(size):
            token = SPSequenceSplit(length, size, rank).local_offset
            changed = Problem(lengths, change=(stream, token)).run(sharing(degrees, size))
            for before, after in zip(base, changed, strict=True):
                assert (np.abs(before - after).max(axis=(0, 2)) > 1e-6).all()


@strategies
@pytest.mark.parametrize("size", [2, 4])
def test_joint_attention_sees_each_token_once(degrees, size):
    """4 text and 16 image tokens: 20 keys for every query, never 16 + size x 4."""
    problem = Problem((4, 16))

    def run(context):
        b, _, _ = problem.graph(context, kernels="portable")
        queries = [node for node in b.nodes if node.op in ("attention", "attention_partial")]
        return sum(node.flops for node in queries)

    degrees = {f"{axis}_degree": degree for axis, degree in sharing(degrees, size).items()}
    # 4 operations for each query, key, head and channel, over all ranks together
    assert sum(ParallelContext.local(size, run, **degrees)) == 4 * 20 * 20 * problem.heads * 8


@pytest.mark.parametrize("degrees", [{"kv_gather": 3}, {"kv_gather": 5}, {"kv_gather": 2, "ulysses": 3}])
def test_gathered_keys_give_the_bits_of_one_rank(degrees):
    problem = Problem((5, 16), batch=2)
    alone = problem.run({"ulysses": 1}, kernels="portable")
    for mine, theirs in zip(problem.run(degrees, kernels="portable"), alone, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@strategies
@pytest.mark.parametrize("replicated", [(), (0,)])
def test_products_of_bf16(degrees, replicated):
    """What one rank gives, bit for bit; but a ring rounds weights that are counted from another highest score."""
    problem = Problem((5, 18), heads=5, batch=2, replicated=replicated)
    choices = {"kernels": "portable", "compute_dtype": "bf16"}
    alone = Problem((5, 18), heads=5, batch=2).run({"ulysses": 1}, **choices)
    atol = 2.0**-7 if "ring" in degrees else 0  # the last bit of a bf16 around 1
    for wire_dtype in ("f32", "bf16"):
        outputs = problem.run(degrees, wire_dtype=wire_dtype, **choices)
        for mine, theirs in zip(outputs, alone, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)
