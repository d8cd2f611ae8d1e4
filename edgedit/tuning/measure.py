"""Measures how fast a rank computes: the nodes of a small transformer at several sizes, one by one and together."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from edgedit.config import ParallelConfig
from edgedit.parallel.context import ParallelContext
from edgedit.parallel.timeline import COMPUTE, Timeline
from edgedit.tuning.cost_model import is_attention, is_free, is_product
from edgedit.tuning.effort import Effort
from edgedit.tuning.machine import Curve, Rates

if TYPE_CHECKING:
    from edgedit.models.flux import FluxTransformer

_HEAD_DIM, _AXES, _TEXT_CHANNELS = 128, (16, 56, 56), 512
# Of a node's own time, at least this share is taken to be work and not the call of ggml around it.
_LEAST_WORK = 0.1


@dataclass(frozen=True)
class TimedNode:
    """A node of a profiled run."""

    op: str
    shape: tuple[int, ...]
    flops: int
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class TimedSize:
    """Of one size: its nodes one by one, and a run of all, as compute and in all."""

    nodes: Sequence[TimedNode]
    compute_s: float
    wall_s: float


def measure_rates(
    parallel: ParallelConfig, dtype: str, threads: int | None, effort: Effort, line_up: Callable[[], None]
) -> Rates:
    """The rates of this rank, which computes alone but at the same time as others.

    parallel  says whose kernels and nodes; line_up  returns once all ranks have called it
    """
    from edgedit.models.flux import FluxConfig
    from edgedit.models.random_flux import transformer_of

    config = FluxConfig(
        num_layers=1,
        num_single_layers=1,
        num_attention_heads=effort.heads,
        attention_head_dim=_HEAD_DIM,
        axes_dims_rope=_AXES,
        joint_attention_dim=_TEXT_CHANNELS,
        pooled_projection_dim=_TEXT_CHANNELS,
    )
    alone = ParallelConfig(
        ops=parallel.ops, kernels=parallel.kernels, local_world_size=parallel.local_world_size,
        local_rank=parallel.local_rank,
    )  # fmt: skip
    with ParallelContext(alone) as context:
        transformer = transformer_of(config, dtype, threads, context)
        try:
            sizes = [
                _Size(transformer, side, text_tokens, line_up)
                for side, text_tokens in zip(effort.sides, effort.text_tokens, strict=True)
            ]
            # Sizes take turns, so that a slow moment of the machine is a small part of what is known of each.
            for _ in range(effort.repeats):
                for size in sizes:
                    size.take_turn()
        finally:
            transformer.close()
    return rates_of([size.timed for size in sizes])


class _Size:
    """Runs of one size: of the graph as a whole, and of its nodes one by one."""

    def __init__(
        self, transformer: FluxTransformer, side: int, text_tokens: int, line_up: Callable[[], None]
    ) -> None:
        from edgedit.models.random_flux import request_of

        request = request_of(transformer.config, side, side, text_tokens)
        steps, pooled = request.pop("timestep")[None], request.pop("pooled_projections")
        self._inputs = {**request, "modulations": transformer.modulations(steps, pooled)[0]}
        self._transformer = transformer
        self._line_up = line_up
        self._compute_s: list[float] = []
        self._wall_s: list[float] = []
        self._profiles: list[list[TimedNode]] = []
        # What the first run of either kind prepares is not of every run.
        self._run()
        self._profile()

    def take_turn(self) -> None:
        compute_s, wall_s = self._run()
        self._compute_s.append(compute_s)
        self._wall_s.append(wall_s)
        self._profiles.append(self._profile())

    @property
    def timed(self) -> TimedSize:
        """Medians of all turns."""
        nodes = [
            replace(together[0], seconds=statistics.median(node.seconds for node in together))
            for together in zip(*self._profiles, strict=True)
        ]
        return TimedSize(nodes, statistics.median(self._compute_s), statistics.median(self._wall_s))

    def _run(self) -> tuple[float, float]:
        """Seconds of computing, and in all."""
        context = self._transformer.context
        self._line_up()
        before, began = replace(context.times), time.perf_counter()
        self._transformer.velocity(**self._inputs)
        return context.times.since(before).compute_s, time.perf_counter() - began

    def _profile(self) -> list[TimedNode]:
        context = self._transformer.context
        timeline = context.timeline = Timeline()
        try:
            self._line_up()
            self._transformer.velocity(**self._inputs)
        finally:
            context.timeline = None
        return _nodes_of(timeline)


def _nodes_of(timeline: Timeline) -> list[TimedNode]:
    slices = [s for s in timeline.slices if s.track == COMPUTE and s.category != "segment"]
    return [
        TimedNode(s.category, tuple(s.args["shape"]), s.args["flops"], s.args["nbytes"], s.seconds)
        for s in sorted(slices, key=lambda s: s.begin_s)
        if not is_free(s.category)
    ]


def rates_of(sizes: Sequence[TimedSize]) -> Rates:
    """Rates from timed nodes, smallest size first.

    A node that runs by itself pays for a call of ggml, as long as the fastest node of all; what a node costs beside its
    work in a whole graph is what such a run of the smallest size takes longer than the work of its nodes. One by one
    they also take longer, since threads are woken for each; so the work of a size is scaled to what its whole graph
    takes.
    """
    call_s = min(node.seconds for size in sizes for node in size.nodes)
    smallest = sizes[0]
    overhead_s = smallest.compute_s - sum(_work_s(node, call_s) for node in smallest.nodes)
    node_s = max(0.0, overhead_s / len(smallest.nodes))
    timed = [(node, seconds) for size in sizes for node, seconds in _work_of(size, call_s, node_s)]
    product = _curve((prod(n.shape[:-1]), n.flops, seconds) for n, seconds in timed if is_product(n.op))
    attention = _curve(
        (n.flops / (4 * prod(n.shape)), n.flops, seconds) for n, seconds in timed if is_attention(n.op)
    )
    others = [(n, seconds) for n, seconds in timed if not is_product(n.op) and not is_attention(n.op)]
    return Rates(
        product,
        attention,
        other=sum(n.nbytes for n, _ in others) / sum(seconds for _, seconds in others),
        node_s=node_s,
        segment_s=call_s,
        pass_s=max(0.0, smallest.wall_s - smallest.compute_s),
    )


def _work_s(node: TimedNode, call_s: float) -> float:
    return max(node.seconds - call_s, _LEAST_WORK * node.seconds)


def _work_of(size: TimedSize, call_s: float, node_s: float) -> list[tuple[TimedNode, float]]:
    """The nodes of a size, and what the work of each takes of a run of the whole graph."""
    work = [_work_s(node, call_s) for node in size.nodes]
    scale = max(_LEAST_WORK, (size.compute_s - node_s * len(work)) / sum(work))
    return [(node, scale * seconds) for node, seconds in zip(size.nodes, work, strict=True)]


def _curve(timed: Iterable[tuple[float, int, float]]) -> Curve:
    """FLOP/s over a size, from (size, FLOPs, seconds) of nodes."""
    flops: dict[float, float] = defaultdict(float)
    seconds: dict[float, float] = defaultdict(float)
    for size, work, took in timed:
        flops[size] += work
        seconds[size] += took
    return Curve(tuple((size, flops[size] / seconds[size]) for size in sorted(flops)))


def median_rates(of_ranks: Sequence[Rates]) -> Rates:
    """Of ranks that measured the same sizes at the same time."""

    def curve(curves: Sequence[Curve]) -> Curve:
        points = zip(*(c.points for c in curves), strict=True)
        return Curve(tuple((p[0][0], statistics.median(rate for _, rate in p)) for p in points))

    def number(name: str) -> float:
        return statistics.median(getattr(rates, name) for rates in of_ranks)

    return Rates(
        curve([rates.product for rates in of_ranks]),
        curve([rates.attention for rates in of_ranks]),
        **{name: number(name) for name in ("other", "node_s", "segment_s", "pass_s")},
    )
