"""The forecast of a command line: its request on every rank of its layout."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from edgedit import kernels
from edgedit.commands.layout_facts import transformer_only_notes
from edgedit.commands.options import parallel_options
from edgedit.commands.plan_graphs import Graphs
from edgedit.commands.plan_subject import Subject, find_subject, request_of, work_of_image
from edgedit.config import ParallelConfig
from edgedit.graph.forecast import SKIPPING, Forecast, RankForecast, Skipping
from edgedit.parallel.mesh import Mesh
from edgedit.parallel.split import array_split, branches_of
from edgedit.pipelines.branches import check_lockstep, idle_notes
from edgedit.pipelines.replicas import replica_notes

if TYPE_CHECKING:
    from edgedit.pipelines.request import Request

# Of a world rank, without some layers.
GraphOf = Callable[[int, tuple[int, ...]], RankForecast]


def forecast_of(args: argparse.Namespace) -> Forecast:
    """The forecast of a command line. ValueError for a model, request or layout that cannot work."""
    from edgedit.pipelines.modulations_ahead import steps_at_once

    subject = find_subject(args.model)
    options, chosen = parallel_options(args, subject.config.num_attention_heads)
    parallel = ParallelConfig.for_plan(**options)
    request = request_of(args, subject)
    check_lockstep(parallel, request)
    mesh = Mesh(parallel)
    if not 0 <= args.rank < mesh.world_size:
        raise ValueError(
            f"--rank {args.rank} is outside the world of {mesh.world_size}; legal: 0 to {mesh.world_size - 1}"
        )
    image_tokens, steps = work_of_image(args, subject, request)
    text_tokens = subject.fixed_text_tokens + request.max_sequence_length
    shares = array_split(request.batch, mesh.degrees["dp"])
    graphs = {
        share: Graphs(
            subject,
            share,
            image_tokens,
            text_tokens,
            args.dtype,
            args.quantised_compute,
            options,
            steps_at_once(steps, share),
        )
        for share in {max(1, share) for share in shares}
    }

    def graph_of(rank: int, skip_layers: tuple[int, ...]) -> RankForecast:
        share = shares[mesh.coords(rank)["dp"]]
        described = graphs[max(1, share)].rank(rank, skip_layers)
        return described if share else described.idle

    described, skipping = _ranks(mesh, request, steps, args.rank, graph_of)
    return Forecast(
        title=f"{subject.title} at {request.width} x {request.height} px",
        facts={
            "model": args.model,
            "dtype": args.dtype,
            "wire_dtype": parallel.wire_dtype_for(args.dtype),
            "weight_residency": parallel.weight_residency,
            "ops": parallel.ops,
            "kernels": kernels.chosen(parallel.kernels),
            "batch": request.batch,
            "image_tokens": image_tokens,
            "text_tokens": text_tokens,
        },
        mesh=mesh,
        ranks=tuple(described[rank] for rank in range(mesh.world_size)),
        detail=args.rank,
        steps=steps,
        branches=len(request.branches),
        notes=(
            *([chosen] if chosen else []),
            *transformer_only_notes(parallel, "planned"),
            *idle_notes(mesh, len(request.branches), _needs(subject)),
            *replica_notes(mesh, shares),
            *([f"the third branch runs in {skipping.steps} of {steps} steps"] if skipping else []),
            *described[0].graph.notes,
            *_fusion_notes(described[0]),
        ),
        parts=math.ceil(steps / steps_at_once(steps, shares[0])),
        skipping=skipping,
        own_tokens=(subject.limits.image_tokens(request.height, request.width), image_tokens),
    )


def _ranks(
    mesh: Mesh, request: Request, steps: int, detail: int, graph_of: GraphOf
) -> tuple[Mapping[int, RankForecast], Skipping | None]:
    """What every world rank runs, and what the third guidance branch does where there is one.

    Of ranks with equal shards the first one is described, so `detail` comes before all others.
    """
    branches, guidance = len(request.branches), request.skip_layer_guidance
    layers = guidance.layers if guidance else ()
    held = [
        branches_of(mesh.coords(rank)["cfg"], branches, mesh.degrees["cfg"])
        for rank in range(mesh.world_size)
    ]
    ranks = {
        rank: graph_of(rank, layers if held[rank] == [SKIPPING] else ())
        for rank in [detail, *range(mesh.world_size)]
    }
    if guidance is None:
        return ranks, None
    without = (graph_of(rank, layers) if SKIPPING in own else ranks[rank] for rank, own in enumerate(held))
    active = sum(guidance.is_active(step, steps) for step in range(steps))
    return ranks, Skipping(tuple(without), active)


def _needs(subject: Subject) -> str:
    """What a second guidance branch takes."""
    return (
        "--guidance-scale"
        if subject.limits.is_guided_by_branches
        else "a negative prompt and --true-cfg-scale"
    )


def _fusion_notes(forecast: RankForecast) -> tuple[str, ...]:
    reasons = forecast.graph.fusion_reasons.items()
    return tuple(f"ops: {operator} is generic: {reason}" for operator, reason in reasons)
