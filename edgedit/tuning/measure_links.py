"""Measures the links between ranks: graphs that do nothing but exchange, as steps do it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.executor import Executor
from edgedit.parallel.mesh import WORLD
from edgedit.parallel.times import RunTimes
from edgedit.tuning.effort import Effort
from edgedit.tuning.machine import Link, fitted_link

if TYPE_CHECKING:
    from edgedit.graph.tensor import Tensor
    from edgedit.parallel.context import ParallelContext
    from edgedit.parallel.process_group import ProcessGroup

KINDS = ("all_to_all", "all_gather", "ring_shift", "all_reduce")
_CHAIN = 4  # collectives of one run
_FILLER = 6  # activations beside the collectives whose overlap is measured


def measure_links(context: ParallelContext, axis: str, threads: int, effort: Effort) -> dict[str, Link]:
    """The link of every kind of collective over the ranks of an axis, which call this together."""
    group = context.group(axis)
    backend = CpuBackend(threads)
    try:
        overlap = _overlap(context, group, backend, effort)
        return {
            kind: fitted_link(
                (_time(context, group, backend, kind, nbytes, effort) for nbytes in effort.nbytes),
                _messages(kind, group.size),
                overlap,
            )
            for kind in KINDS
        }
    finally:
        backend.close()


def _messages(kind: str, size: int) -> int:
    """Latencies that the cost model counts in a collective of so many ranks."""
    peers = 1 if kind == "ring_shift" else size - 1
    return 2 * peers if kind == "all_reduce" else peers


def _time(
    context: ParallelContext, group: ProcessGroup, backend: CpuBackend, kind: str, nbytes: int, effort: Effort
) -> tuple[float, float]:
    """(bytes sent, seconds) of one collective in which a rank sends about so many bytes, on the slowest rank."""
    rounds = {"all_gather": group.size - 1, "all_reduce": 2}.get(kind, 1)
    count = max(1, nbytes // (4 * rounds * group.size)) * group.size

    def build(b: GraphBuilder) -> None:
        x = b.scale(b.input("x", (count,)), 1.0)
        for index in range(_CHAIN):
            x = _collective(b, kind, f"{kind}{index}", x, group)
        b.output("y", b.scale(x, 1.0))

    name = f"{kind} of {nbytes} bytes"
    executor = _executor(context, backend, build, name, group.size)
    seconds = [(t.exchange_s + t.wait_s) / _CHAIN for t in _runs(context, executor, count, effort.repeats)]
    sent = executor.schedule.collectives[0].bytes_sent
    executor.close()
    return float(sent), max(_of_ranks(group, statistics.median(seconds)))


def _collective(b: GraphBuilder, kind: str, name: str, x: Tensor, group: ProcessGroup) -> Tensor:
    """x [n] through a collective; what comes back is [n] again."""
    if kind == "all_reduce":
        return b.scale(b.all_reduce(name, x, group), 1 / group.size)
    if kind == "all_gather":
        return b.scale(b.slice(b.all_gather(name, x, group), 0, 0, x.count), 1.0)
    sent = received = [x.count // group.size] * group.size
    if kind == "ring_shift":
        sent = [x.count if peer == (group.rank + 1) % group.size else 0 for peer in range(group.size)]
        received = [x.count if peer == (group.rank - 1) % group.size else 0 for peer in range(group.size)]
    total = x.count * group.size
    return b.collective(kind, name, group.name, x, x.shape, sent, received, group.rank, total_count=total)


def _overlap(context: ParallelContext, group: ProcessGroup, backend: CpuBackend, effort: Effort) -> float:
    """The share of a large transfer that hides behind compute: what both together take less than one after the
    other, of the shorter of the two."""
    count = effort.nbytes[-1] // (4 * group.size) * group.size

    def seconds(exchanges: bool, computes: bool) -> float:
        def build(b: GraphBuilder) -> None:
            x = filler = b.scale(b.input("x", (count,)), 1.0)
            if exchanges:
                b.output("y", b.scale(_collective(b, "all_to_all", "exchange", x, group), 1.0))
            for _ in range(_FILLER if computes else 1):
                filler = b.silu(filler)
            b.output("z", filler)

        executor = _executor(context, backend, build, "overlap", group.size if exchanges else 1)
        total = [times.total_s for times in _runs(context, executor, count, effort.repeats)]
        executor.close()
        return max(_of_ranks(group, statistics.median(total)))

    exchange_s, compute_s, both_s = seconds(True, False), seconds(False, True), seconds(True, True)
    hidden = (exchange_s + compute_s - both_s) / min(exchange_s, compute_s)
    return min(1.0, max(0.0, hidden))


def _executor(
    context: ParallelContext,
    backend: CpuBackend,
    build: Callable[[GraphBuilder], None],
    name: str,
    degree: int,
) -> Executor:
    builder = GraphBuilder(name, context.config.ops, kernels=context.config.kernels)
    build(builder)
    return Executor(builder, backend, context, degree=degree)


def _runs(context: ParallelContext, executor: Executor, count: int, repeats: int) -> list[RunTimes]:
    """The times of so many runs of x [count], after one that does not count."""
    inputs: Mapping[str, np.ndarray] = {"x": np.linspace(0, 1, count, dtype=np.float32)}
    times = []
    for _ in range(repeats + 1):
        context.group(WORLD).barrier(label="start of an exchange")
        executor.run(inputs)
        times.append(executor.times)
    return times[1:]


def _of_ranks(group: ProcessGroup, seconds: float) -> list[float]:
    return [float(data) for data in group.exchange(repr(seconds).encode(), label="times of exchanges")]
