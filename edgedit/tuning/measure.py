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
                _measure(transformer, side, text_tokens, effort.repeats, line_up)
                for side, text_tokens in zip(effort.sides, effort.text_tokens, strict=True)
            ]
        finally:
            transformer.close()
    return rates_of(sizes)


def _measure(
    transformer: FluxTransformer, side: int, text_tokens: int, repeats: int, line_up: Callable[[], None]
) -> TimedSize:
    from edgedit.models.random_flux import request_of

    context = transformer.context
    request = request_of(transformer.config, side, side, text_tokens)
    steps, pooled = request.pop("timestep")[None], request.pop("pooled_projections")
    inputs = {**request, "modulations": transformer.modulations(steps, pooled)[0]}

    def run() -> None:
        line_up()
        transformer.velocity(**inputs)

    run()
    compute, wall = [], []
    for _ in range(repeats):
        line_up()
        before, began = replace(context.times), time.perf_counter()
        transformer.velocity(**inputs)
        wall.append(time.perf_counter() - began)
        compute.append(context.times.since(before).compute_s)
    profiles = []
    for _ in range(repeats + 1):  # the first one makes the views of the nodes
        timeline = context.timeline = Timeline()
        run()
        profiles.append(_nodes_of(timeline))
    context.timeline = None
    nodes = [
        replace(together[0], seconds=statistics.median(node.seconds for node in together))
        for together in zip(*profiles[1:], strict=True)
    ]
    return TimedSize(nodes, statistics.median(compute), statistics.median(wall))


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
    work in a whole graph is what such a run of the smallest size takes longer than the work of its nodes.
    """
    nodes = [node for size in sizes for node in size.nodes]
    call_s = min(node.seconds for node in nodes)

    def work_s(node: TimedNode) -> float:
        return max(node.seconds - call_s, _LEAST_WORK * node.seconds)

    product = _curve((prod(n.shape[:-1]), n.flops, work_s(n)) for n in nodes if is_product(n.op))
    attention = _curve(
        (n.flops / (4 * prod(n.shape)), n.flops, work_s(n)) for n in nodes if is_attention(n.op)
    )
    others = [n for n in nodes if not is_product(n.op) and not is_attention(n.op)]
    smallest = sizes[0]
    overhead_s = smallest.compute_s - sum(map(work_s, smallest.nodes))
    return Rates(
        product,
        attention,
        other=sum(n.nbytes for n in others) / sum(map(work_s, others)),
        node_s=max(0.0, overhead_s / len(smallest.nodes)),
        segment_s=call_s,
        pass_s=max(0.0, smallest.wall_s - smallest.compute_s),
    )


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
