"""The graph-cut executor: ranks are threads of this process, the oracle is numpy."""

import numpy as np
import pytest
from graph_runner import random

from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.counters import COUNTERS
from edgedit.graph.executor import Executor
from edgedit.graph.schedule import Segment, Start, Wait
from edgedit.parallel.context import ParallelContext


def on_ranks(world_size, build, inputs, repeats=1, compute=None):
    """Outputs of every rank; `build(b, group)` adds nodes, `inputs(rank)` gives the values."""

    def run(context):
        group = context.group("ulysses")
        b = GraphBuilder("test")
        build(b, group)
        executor = Executor(b, CpuBackend(1), context, degree=group.size)
        for _ in range(repeats):
            result = executor.run(inputs(group.rank))
        return result, executor.schedule

    return ParallelContext.local(world_size, run, ulysses_degree=world_size)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_kind_of_collective(size):
    values = [random(3, 4, seed=rank) for rank in range(size)]
    lengths = [2 + rank for rank in range(size)]

    def build(b, group):
        x = b.silu(b.input("x", (3, 4)))
        parts = b.input("parts", (lengths[group.rank] * 5,))
        b.output("gathered", b.contiguous(b.all_gather("gather", b.scale(parts, 1.0), group, _rows(group))))
        b.output("summed", b.contiguous(b.all_reduce("reduce", x, group)))
        b.output("first", b.contiguous(b.broadcast("broadcast", x, group)))
        counts = [group.rank + 1] * size, [peer + 1 for peer in range(size)]
        mine = b.slice(b.reshape(x, (12,)), 0, 0, size * (group.rank + 1)) if size < 4 else None
        if mine is not None:
            b.output("traded", b.contiguous(b.all_to_all("trade", b.contiguous(mine), group, *counts)))

    def _rows(group):
        return [length * 5 for length in lengths]

    def inputs(rank):
        return {"x": values[rank], "parts": random(lengths[rank] * 5, seed=50 + rank)}

    activated = [v / (1 + np.exp(-v)) for v in values]
    for rank, (result, schedule) in enumerate(on_ranks(size, build, inputs, repeats=3)):
        expected = np.concatenate([inputs(peer)["parts"] for peer in range(size)])
        np.testing.assert_array_equal(result["gathered"], expected)
        np.testing.assert_allclose(result["summed"], sum(activated), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(result["first"], activated[0], rtol=1e-5, atol=1e-6)
        if size < 4:
            blocks = [
                a.reshape(-1)[: size * (p + 1)].reshape(size, p + 1)[rank] for p, a in enumerate(activated)
            ]
            np.testing.assert_allclose(result["traded"], np.concatenate(blocks), rtol=1e-5, atol=1e-6)
        assert schedule.bytes_sent == sum(c.bytes_sent for c in schedule.collectives)


def test_send_and_receive_buffers_survive_compute_that_runs_in_flight():
    """Six products run between start and wait; in a wrong allocation they overwrite what is being exchanged."""
    size, channels = 2, 32
    weights = [random(channels, channels, seed=s) / 8 for s in range(6)]

    def build(b, group):
        x = b.input("x", (4, channels))
        gathered = b.all_gather("gather", b.scale(x, 3.0), group)
        y = x
        for index, weight in enumerate(weights):
            y = b.linear(y, b.constant(f"w{index}", weight))
        b.output(
            "both",
            b.add(
                b.linear(gathered, b.constant("eye", np.eye(channels, dtype=np.float32))),
                b.repeat(b.slice(y, 0, 0, 1), (4 * size, channels)),
            ),
        )

    values = [random(4, channels, seed=rank) for rank in range(size)]
    for rank, (result, schedule) in enumerate(
        on_ranks(size, build, lambda rank: {"x": values[rank]}, repeats=3)
    ):
        y = values[rank]
        for weight in weights:
            y = y @ weight.T
        expected = 3 * np.concatenate(values) + y[:1]
        np.testing.assert_allclose(result["both"], expected, rtol=1e-4, atol=1e-5)
        kinds = [type(step) for step in schedule.steps]
        assert kinds == [Segment, Start, Segment, Wait, Segment]
        assert schedule.overlapped[0].flops >= 6 * 2 * 4 * channels**2


def test_more_than_thirty_tensors_may_cross_a_cut():
    def build(b, group):
        x = b.input("x", (8,))
        parts = [b.scale(x, float(factor)) for factor in range(40)]
        received = b.all_gather("gather", b.scale(x, 1.0), group)
        total = b.slice(received, 0, 0, 8)
        for part in parts:
            total = b.add(total, part)
        b.output("total", total)

    values = random(8)
    for result, schedule in on_ranks(2, build, lambda rank: {"x": values}):
        np.testing.assert_allclose(result["total"], values * (1 + sum(range(40))), rtol=1e-5)
        assert max(len(segment.reads) for segment in schedule.segments) > 30 or schedule.overlapped[0].nodes


def test_a_rank_that_owns_nothing_takes_part():
    lengths = [1, 0, 0]

    def build(b, group):
        x = b.input("x", (lengths[group.rank], 4))
        whole = b.all_gather("gather", b.add(x, x), group, lengths)
        b.output("y", b.contiguous(whole))

    value = random(1, 4)
    for result, _ in on_ranks(3, build, lambda rank: {"x": value[: lengths[rank]]}):
        np.testing.assert_array_equal(result["y"], 2 * value)


def test_running_builds_and_allocates_nothing():
    b = GraphBuilder("test")
    b.output("y", b.silu(b.input("x", (4,))))
    executor = Executor(b, CpuBackend(1), ParallelContext(ParallelConfig()))
    before = (COUNTERS.graphs_built, COUNTERS.graphs_compiled, COUNTERS.buffers_allocated)
    runs = COUNTERS.runs
    for seed in range(5):
        executor.run({"x": random(4, seed=seed)})
    assert (COUNTERS.graphs_built, COUNTERS.graphs_compiled, COUNTERS.buffers_allocated) == before
    assert COUNTERS.runs == runs + 5


def test_inputs_are_checked_before_anything_runs():
    b = GraphBuilder("test")
    b.output("y", b.silu(b.input("x", (4,))))
    executor = Executor(b, CpuBackend(1), ParallelContext(ParallelConfig()))
    with pytest.raises(ValueError, match=r"takes inputs \['x'\], got \['z'\]"):
        executor.run({"z": random(4)})
    with pytest.raises(ValueError, match=r"input 'x' must be \[4\], got \[5\]"):
        executor.run({"x": random(5)})


def test_a_graph_for_several_ranks_without_any_collective_is_an_error():
    def build(b, group):
        b.output("y", b.silu(b.input("x", (4,))))

    with pytest.raises(EdgeditError, match="2 ranks holds no collective"):
        on_ranks(2, build, lambda rank: {"x": random(4)})


def test_ranks_whose_schedules_differ_are_told_the_first_line_that_does():
    def build(b, group):
        x = b.scale(b.input("x", (4,)), 1.0)
        name = "second" if group.rank == 1 else "first"
        b.output("y", b.contiguous(b.all_gather(name, x, group)))

    with pytest.raises(EdgeditError, match="all_gather first.*all_gather second"):
        on_ranks(2, build, lambda rank: {"x": random(4)})


def test_counts_that_do_not_meet_are_found_before_the_first_run():
    def build(b, group):
        x = b.scale(b.input("x", (6,)), 1.0)
        # 3 elements each way, but rank 1 expects 2 from rank 0 and 4 from itself
        expected = [3, 3] if group.rank == 0 else [2, 4]
        b.output("y", b.contiguous(b.all_to_all("trade", x, group, [3, 3], expected)))

    with pytest.raises(
        EdgeditError,
        match="trade: rank 0 sends 3 elements to rank 1, which expects 2|counts that do not match",
    ):
        on_ranks(2, build, lambda rank: {"x": random(6)})
