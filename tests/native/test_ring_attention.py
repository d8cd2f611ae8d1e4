"""Attention in parts: the operators against numpy, and how a ring lays hops over the work on their forerunners."""

import numpy as np
import pytest
from graph_runner import random, run_graph
from joint_attention import HEAD_DIM, Problem

from edgedit.graph.backend import CpuBackend
from edgedit.graph.executor import Executor
from edgedit.graph.planner import plan
from edgedit.kernels import Offer
from edgedit.parallel.context import ParallelContext

FAMILIES = Offer.here().usable
families = pytest.mark.parametrize("family", FAMILIES)


def attention_and_lse(q, k, v, mask=0.0):
    """[B, Sq, H, D + 1] in double precision: 0 and -inf where no key is left."""
    q, k, v = (x.astype(np.float64).swapaxes(1, 2) for x in (q, k, v))
    with np.errstate(divide="ignore"):
        weights = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + mask)
        total = weights.sum(-1, keepdims=True)
        lse = np.log(total)
    out = weights @ v / np.where(total == 0, 1, total)
    return np.concatenate([out, lse], -1).swapaxes(1, 2)


def planes(queries, keys, heads=3, head_dim=20, batch=3):
    shapes = [(batch, queries, heads, head_dim)] + 2 * [(batch, keys, heads, head_dim)]
    return [random(*shape, seed=seed) for seed, shape in enumerate(shapes)]


@families
@pytest.mark.parametrize("queries, keys", [(1, 1), (7, 13), (70, 300)])
def test_attention_with_the_logarithms_of_its_sums(family, queries, keys):
    q, k, v = planes(queries, keys)
    result = run_graph(lambda b, *x: b.attention_partial(*x), q, k, v, kernels=family)
    np.testing.assert_allclose(result, attention_and_lse(q, k, v), atol=1e-5, rtol=0)


@families
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_masked_queries_have_no_sum(family, dtype):
    q, k, v = planes(5, 9)
    mask = np.where(random(5, 9, seed=7) > 0, -np.inf, random(5, 9, seed=8)).astype(np.float16)
    mask[3] = -np.inf
    mask = mask.astype(np.float32 if dtype == "f32" else np.float16)
    result = run_graph(
        lambda b, *x: b.attention_partial(*x, mask=b.constant("mask", mask)), q, k, v, kernels=family
    )
    expected = attention_and_lse(q, k, v, mask.astype(np.float64))
    np.testing.assert_allclose(result, expected, atol=1e-5, rtol=0)
    assert (result[:, 3, :, :-1] == 0).all() and (result[:, 3, :, -1] == -np.inf).all()


def merged(a, b):
    """By the formula, in double precision; -inf on both sides gives 0."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    lse = np.logaddexp(a[..., -1:], b[..., -1:])
    finite = np.where(np.isfinite(lse), lse, 0)
    out = a[..., :-1] * np.exp(a[..., -1:] - finite) + b[..., :-1] * np.exp(b[..., -1:] - finite)
    return np.concatenate([out, lse], -1)


@pytest.mark.parametrize("spread", [0, 1, 100])
@pytest.mark.parametrize("threads", [1, 3])
def test_merging_parts(spread, threads):
    a, b = random(3, 7, 2, 9, seed=1), random(3, 7, 2, 9, seed=2)
    for part, empty in ((a, [0, 1]), (b, [1, 2])):
        part[..., -1] *= spread
        part[:, empty, :, :-1], part[:, empty, :, -1] = 0, -np.inf
    expected = merged(a, b)
    result = run_graph(lambda g, a, b: g.attention_merge(g.scale(a, 1.0), b), a, b, threads=threads)
    np.testing.assert_allclose(result, expected, atol=1e-6, rtol=1e-6)
    assert (result[:, 1, :, :-1] == 0).all() and (result[:, 1, :, -1] == -np.inf).all()
    whole = run_graph(lambda g, a, b: g.attention_merged(a, b), a, b, threads=threads)
    np.testing.assert_array_equal(whole, result[..., :-1].reshape(3, 7, -1))
    rounded = run_graph(lambda g, a, b: g.cast(g.attention_merged(a, b, "f16"), "f32"), a, b)
    np.testing.assert_array_equal(rounded, whole.astype(np.float16).astype(np.float32))


@families
def test_keys_in_parts_give_what_all_keys_give(family):
    q, k, v = planes(33, 150)

    def build(b, q, k, v):
        parts = [
            b.attention_partial(q, b.slice(k, 1, *ends), b.slice(v, 1, *ends))
            for ends in ((0, 1), (1, 129), (129, 150))
        ]
        return b.attention_merged(b.attention_merge(*parts[:2]), parts[2])

    result = run_graph(build, q, k, v, kernels=family)
    expected = attention_and_lse(q, k, v)[..., :-1].reshape(result.shape)
    np.testing.assert_allclose(result, expected, atol=1e-5, rtol=0)


def test_parts_of_unlike_queries_do_not_merge():
    a, b = random(1, 3, 2, 9), random(1, 4, 2, 9)
    with pytest.raises(ValueError, match=r"both must be f32 \[B, Sq, H, D \+ 1\]"):
        run_graph(lambda g, a, b: g.attention_merge(a, b), a, b)


# rings


def graphs(problem, ops="fused", **degrees):
    """The builder of each rank."""
    size = int(np.prod(list(degrees.values())))
    options = {f"{axis}_degree": degree for axis, degree in degrees.items()}
    return ParallelContext.local(size, lambda context: problem.graph(context, ops=ops)[0], **options)


def schedule_of(b, degree):
    outputs = [tensor.node for tensor in b.outputs.values()]
    return plan(b.nodes, b.collectives, outputs, degree=degree)


@pytest.mark.parametrize("ops", ["fused", "generic"])
@pytest.mark.parametrize("degrees", [{"ring": 2}, {"ring": 5}, {"ring": 3, "ulysses": 2}])
def test_a_hop_is_under_way_while_its_forerunner_is_attended_to(ops, degrees):
    problem = Problem((6, 24))
    for b in graphs(problem, ops, **degrees):
        schedule = schedule_of(b, int(np.prod(list(degrees.values()))))
        attended = [node.index for node in b.nodes if node.op == "attention_partial"]
        hops = [i for i, c in enumerate(schedule.collectives) if c.kind == "ring_shift"]
        assert len(attended) == degrees["ring"] == len(hops) + 1
        for hop, forerunner in zip(hops, attended, strict=False):
            inside = [index for index in schedule.overlapped[hop].nodes if index in attended]
            assert inside == [forerunner]
            assert schedule.overlapped[hop].flops > 0


def test_ranks_with_unlike_chunks_plan_alike():
    """One token of text and two of the image on 4 x 2 ranks: most have none."""
    for lengths in ((1, 2), (5, 17)):
        digests = [schedule_of(b, 8).digest for b in graphs(Problem(lengths), ring=4, ulysses=2)]
        assert len(set(digests)) == 1


def test_what_every_rank_holds_does_not_travel():
    def nbytes(problem):
        return [schedule_of(b, 4).bytes_sent for b in graphs(problem, ring=4)]

    text, image = 100, 8
    row = 4 * HEAD_DIM * 4  # bytes of all heads of a token
    own = image // 4
    # three hops of the image's k and v, and the gathering of the image's outputs
    assert nbytes(Problem((text, image), replicated=(0,))) == [3 * own * row * 2 + 3 * own * row] * 4
    assert min(nbytes(Problem((text, image)))) > 10 * 9 * own * row


@pytest.mark.parametrize("wire_dtype, error", [("f16", 2e-3), ("bf16", 2e-2)])
@pytest.mark.parametrize("degrees", [{"ring": 3}, {"kv_gather": 3}, {"ring": 2, "ulysses": 2}])
@pytest.mark.parametrize("ops", ["fused", "generic"])
def test_a_narrow_wire_rounds_but_no_more(wire_dtype, error, degrees, ops):
    problem = Problem((5, 16))
    outputs = problem.run(degrees, wire_dtype=wire_dtype, ops=ops)
    for mine, exact in zip(outputs, problem.expected(), strict=True):
        assert 1e-6 < np.linalg.norm(mine - exact) / np.linalg.norm(exact) < error


@pytest.mark.parametrize("degrees", [{"ring": 3}, {"kv_gather": 3}, {"ring": 2, "ulysses": 2}])
def test_memory_is_as_foretold(degrees):
    problem = Problem((9, 40))
    size = int(np.prod(list(degrees.values())))

    def run(context):
        b, _, _ = problem.graph(context)
        executor = Executor(b, CpuBackend(1), context, degree=size)
        return executor.compute_nbytes, executor.schedule.buffer_nbytes

    options = {f"{axis}_degree": degree for axis, degree in degrees.items()}
    for taken, foretold in ParallelContext.local(size, run, **options):
        assert taken == foretold > 0
