"""Profiled runs: the same results, and a slice for every node that takes time."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from graph_runner import random

from edgedit.config import ParallelConfig
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.executor import Executor
from edgedit.models.random_flux import random_request, random_transformer
from edgedit.parallel.context import ParallelContext
from edgedit.parallel.timeline import COMPUTE, EXCHANGE, REQUEST, WAIT, Timeline

VIEWS = {"none", "view", "reshape", "permute", "transpose"}


def profiled(context: ParallelContext, run) -> Timeline:
    """What `run` leaves in a timeline."""
    timeline = context.timeline = Timeline()
    run()
    context.timeline = None
    return timeline


def slices(timeline: Timeline, track: str) -> list:
    return [piece for piece in timeline.slices if piece.track == track]


@pytest.mark.parametrize("comm", ["graph-cut", "in-graph"])
@pytest.mark.parametrize("ops", ["fused", "generic"])
def test_a_transformer_gives_the_same_bits_and_a_slice_per_node(comm: str, ops: str) -> None:
    context = ParallelContext(ParallelConfig(comm=comm, ops=ops))
    model, request = random_transformer("tiny", threads=2, context=context), random_request("tiny")
    expected = model(**request)
    results = []
    timeline = profiled(context, lambda: results.append(model(**request)))
    assert results[0].tobytes() == expected.tobytes()
    assert model(**request).tobytes() == expected.tobytes()

    graphs = slices(timeline, REQUEST)
    assert [piece.name for piece in graphs] == ["FluxTransformer", "FluxTransformer"]  # conditioning, step
    executors = list(model._executors.values())
    nodes = [node for executor in executors for node in executor._builder.nodes if node.op not in VIEWS]
    found = [piece for piece in slices(timeline, COMPUTE) if piece.category != "segment"]
    assert Counter(piece.name for piece in found) == Counter(node.name for node in nodes)
    for piece, node in zip(found, nodes, strict=True):
        assert (piece.category, piece.args["shape"], piece.args["dtype"]) == (
            node.op,
            list(node.shape),
            node.dtype,
        )
        assert (piece.args["flops"], piece.seconds > 0) == (node.flops, True)
        assert piece.args["nbytes"] >= node.nbytes
    for piece in found:
        assert any(graph.begin_s <= piece.begin_s < piece.end_s <= graph.end_s for graph in graphs)
    model.close()


def trade(b: GraphBuilder, group) -> None:
    x = b.input("x", (3, 4))
    gathered = b.all_gather("gather", b.silu(x), group)
    b.output("gathered", b.contiguous(b.scale(gathered, 2.0)))
    b.output("summed", b.contiguous(b.all_reduce("reduce", b.scale(x, 0.5), group)))


def test_exchanges_between_ranks_have_slices_of_their_own() -> None:
    def run(context: ParallelContext):
        group = context.group("ulysses")
        b = GraphBuilder("trade")
        trade(b, group)
        executor = Executor(b, CpuBackend(1), context, degree=group.size)
        inputs = {"x": random(3, 4, seed=group.rank)}
        expected = executor.run(inputs)
        results = []

        def late():
            time.sleep(0.1 * group.rank)
            results.append(executor.run(inputs))

        timeline = profiled(context, late)
        for name, values in expected.items():
            np.testing.assert_array_equal(results[0][name], values)
        return timeline, executor.times, replace(context.times)

    ranks = ParallelContext.local(2, run, ulysses_degree=2)
    for timeline, times, of_context in ranks:
        exchanges = slices(timeline, EXCHANGE)
        assert Counter(piece.name for piece in exchanges) == Counter(
            ["gather start", "gather wait", "reduce start", "reduce wait"]
        )
        assert {piece.args["bytes_sent"] for piece in exchanges if "gather" in piece.name} == {48}
        waits = slices(timeline, WAIT)
        assert times.wait_s == pytest.approx(sum(piece.seconds for piece in waits), abs=1e-6)
        nodes = [piece for piece in slices(timeline, COMPUTE) if piece.category != "segment"]
        assert times.compute_s == pytest.approx(sum(piece.seconds for piece in nodes), abs=1e-6)
        (graph,) = slices(timeline, REQUEST)
        assert 0 < times.total_s <= graph.seconds
        assert of_context.total_s > times.total_s, "the run before counts as well"
    assert ranks[0][1].wait_s > 0.05, "the rank that is early waits"
    assert ranks[1][1].wait_s < ranks[0][1].wait_s


def test_times_of_a_run_leave_nothing_out() -> None:
    context = ParallelContext(ParallelConfig())
    model, request = random_transformer("tiny", threads=1, context=context), random_request("tiny")
    model(**request)
    before, began = replace(context.times), time.perf_counter()
    model(**request)
    wall_s, times = time.perf_counter() - began, context.times.since(before)
    assert 0.5 * wall_s < times.compute_s < wall_s
    assert (times.exchange_s, times.wait_s) == (0, 0)
    model.close()
