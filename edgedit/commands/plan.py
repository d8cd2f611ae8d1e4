"""``edgedit plan``: what a layout would do, without weights and without MPI."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from edgedit import kernels, presets
from edgedit.commands import output, prediction
from edgedit.commands.image_arguments import add_planned_image_arguments
from edgedit.commands.layouts import add_auto_argument
from edgedit.commands.options import add_parallel_arguments, parallel_options
from edgedit.commands.plan_subject import Subject, find_subject, request_of, work_of_image
from edgedit.commands.request_arguments import add_request_arguments
from edgedit.commands.skip_layer_arguments import add_skip_layer_arguments
from edgedit.config import ParallelConfig
from edgedit.graph.forecast import SKIPPING, Forecast, RankForecast, Skipping, as_json
from edgedit.graph.page import as_text
from edgedit.parallel.mesh import WEIGHTS, Mesh
from edgedit.parallel.split import array_split, branches_of
from edgedit.pipelines.branches import check_lockstep, idle_notes
from edgedit.pipelines.parts import EMBEDDED
from edgedit.pipelines.replicas import replica_notes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    known = ", ".join([EMBEDDED, *presets.names()])
    add("--model", default=EMBEDDED, metavar="MODEL",
        help=f"{known}, a diffusers directory, or a transformer's config.json (default: {EMBEDDED})")  # fmt: skip
    add("--guidance-scale", type=float, metavar="X",
        help="Stable Diffusion 3: above 1, as by default, two guidance branches")  # fmt: skip
    add("--true-cfg-scale", type=float, metavar="X",
        help="FLUX: above 1, two guidance branches, as with a negative prompt")  # fmt: skip
    add("--rank", type=int, default=0, metavar="R", help="whose segments to show (default: %(default)s)")
    add("--ranks-detail", action="store_true", help="one line a rank, however many there are")
    add("--full", action="store_true", help="every step, instead of repeated blocks once")
    add("--plot", type=Path, metavar="FILE.svg", help="also draw the steps of the rank (needs matplotlib)")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add_auto_argument(parser, "instead of a plan, predict the time of all legal layouts, the fastest first")
    add("--ranks", type=int, metavar="N", help="with --auto: over N ranks (default: up to this host's cores)")
    add("--cluster", type=Path, metavar="FILE.toml",
        help="predict times on machines that are not there, of this layout or with --auto of all")  # fmt: skip
    add_request_arguments(parser)
    add_skip_layer_arguments(parser)
    add_planned_image_arguments(parser)
    add_parallel_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.auto or args.cluster is not None:
        return prediction.run(args)
    if args.ranks is not None:
        raise ValueError(f"--ranks {args.ranks} needs --auto")
    if args.plot is not None:
        if args.plot.suffix not in (".svg", ".png", ".pdf"):
            raise ValueError(f"--plot {str(args.plot)!r}: the name must end in .svg, .png or .pdf")
        output.check_writable([args.plot])
    forecast = forecast_of(args)
    if args.plot is not None:
        from edgedit.graph.picture import draw

        picture_format = args.plot.suffix.removeprefix(".")
        output.write_files({args.plot: lambda partial: draw(forecast, partial, picture_format)})
    if args.json:
        print(json.dumps(as_json(forecast)))
    else:
        print(as_text(forecast, full=args.full, every_rank=args.ranks_detail))
    return 0


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
        share: _Graphs(
            subject, share, image_tokens, text_tokens, args.dtype, options, steps_at_once(steps, share)
        )
        for share in {max(1, share) for share in shares}
    }

    def graph_of(rank: int, skip_layers: tuple[int, ...]) -> RankForecast:
        share = shares[mesh.coords(rank)["dp"]]
        described = graphs[max(1, share)].rank(rank, skip_layers)
        return described if share else described.idle

    branches, guidance = len(request.branches), request.skip_layer_guidance
    layers = guidance.layers if guidance else ()
    held = [
        branches_of(mesh.coords(rank)["cfg"], branches, mesh.degrees["cfg"])
        for rank in range(mesh.world_size)
    ]
    # The rank in detail comes first: of ranks with equal shards the first one is described.
    described = {
        rank: graph_of(rank, layers if held[rank] == [SKIPPING] else ())
        for rank in [args.rank, *range(mesh.world_size)]
    }
    skipping = None
    if guidance:
        active = sum(guidance.is_active(step, steps) for step in range(steps))
        without = (
            graph_of(rank, layers) if SKIPPING in own else described[rank] for rank, own in enumerate(held)
        )
        skipping = Skipping(tuple(without), active)
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
        branches=branches,
        notes=(
            *([chosen] if chosen else []),
            *idle_notes(mesh, branches, _needs(subject)),
            *replica_notes(mesh, shares),
            *([f"the third branch runs in {skipping.steps} of {steps} steps"] if skipping else []),
            *described[0].graph.notes,
            *_fusion_notes(described[0]),
        ),
        parts=math.ceil(steps / steps_at_once(steps, shares[0])),
        skipping=skipping,
        own_tokens=(subject.limits.image_tokens(request.height, request.width), image_tokens),
    )


def _needs(subject: Subject) -> str:
    """What a second guidance branch takes."""
    return "--guidance-scale" if subject.limits.is_guided_by_branches else "a negative prompt and --true-cfg-scale"


def _fusion_notes(forecast: RankForecast) -> tuple[str, ...]:
    reasons = forecast.graph.fusion_reasons.items()
    return tuple(f"ops: {operator} is generic: {reason}" for operator, reason in reasons)


class _Graphs:
    """Describes and plans the graph of each rank, once for all ranks with equal shards."""

    def __init__(
        self,
        subject: Subject,
        batch: int,
        image_tokens: int,
        text_tokens: int,
        dtype: str,
        options: dict[str, Any],
        steps_at_once: int,
    ) -> None:
        self.network, self.config = subject.network, subject.config
        self.shape = {"batch": batch, "image_tokens": image_tokens, "text_tokens": text_tokens}
        self.dtype = dtype
        self.options = options
        self.parallel = ParallelConfig.for_plan(**options)
        self.mesh = Mesh(self.parallel)
        self.steps_at_once = steps_at_once
        self.known: dict[Hashable, RankForecast] = {}
        self.ahead: dict[tuple[int, ...], RankForecast] = {}  # by the shares of weights, which alone decide it
        # of weights, by place on the tp axis and among the ranks that keep shares
        self.shares: dict[tuple[int, int], tuple[int, ...]] = {}

    def rank(self, rank: int, skip_layers: tuple[int, ...] = ()) -> RankForecast:
        degrees, place = self.mesh.degrees, self.mesh.coords(rank)
        weights = self._shares_of_weights(rank, (place["tp"], self.mesh.group_of(WEIGHTS, rank).index(rank)))
        heads = array_split(self.config.num_attention_heads, degrees["tp"])[place["tp"]]
        chunks = self._chunks()
        shared = (*chunks[place["ring"] + place["kv_gather"]], heads)
        *tokens, heads = (array_split(whole, degrees["ulysses"])[place["ulysses"]] for whole in shared)
        # the chunks that pass by in a ring, the own one first
        hops = tuple(chunks[(place["ring"] - hop) % degrees["ring"]] for hop in range(degrees["ring"]))
        # what a rank adds up of the sums over tp: they are of either stream, or of both together
        rows = (self.shape["batch"] * count * self.config.dim for count in (*tokens, sum(tokens)))
        sums = (array_split(count, degrees["tp"])[place["tp"]] for count in rows)
        shard = (*shared, *tokens, heads, *sums, *weights, hops, skip_layers)
        if shard not in self.known:
            graph = self.network.describe(
                self.config,
                **self.shape,
                compute_dtype=self.dtype,
                parallel=ParallelConfig.for_plan(**self.options, rank=rank),
                skip_layers=skip_layers,
            )
            degree = self.parallel.graph_degree
            self.known[shard] = RankForecast.of(graph, degree, self._modulations(rank, weights))
        return self.known[shard]

    def _chunks(self) -> list[tuple[int, int]]:
        """Image and text tokens of each place on the axis that shares tokens first."""
        degree = self.mesh.degrees["ring"] * self.mesh.degrees["kv_gather"]
        streams = self.shape["image_tokens"], self.shape["text_tokens"]
        images, texts = (array_split(whole, degree) for whole in streams)
        return list(zip(images, texts, strict=True))

    def _shares_of_weights(self, rank: int, place: tuple[int, int]) -> tuple[int, ...]:
        """Channels that a rank has of each weight that is shared, and bytes that it keeps of each block."""
        from edgedit.weights.outline import outline

        if place not in self.shares:
            parallel = ParallelConfig.for_plan(**self.options, rank=rank)
            network = self.network.network_on(self.config, parallel, self.dtype)
            channels = tuple(p.part.length for _, p in network.named_parameters() if p.part is not None)
            with outline(network, self.dtype, kernels.chosen(parallel.kernels)):
                layouts = [block.layout for block in network.weight_blocks.values()]
                self.shares[place] = (*channels, *(layout.count for layout in layouts if layout))
        return self.shares[place]

    def _modulations(self, rank: int, weights: tuple[int, ...]) -> RankForecast:
        """What a rank computes of timesteps, guidance and pooled text, for so many steps at once."""
        if weights not in self.ahead:
            graph = self.network.describe_modulations(
                self.config,
                rows=self.steps_at_once * self.shape["batch"],
                compute_dtype=self.dtype,
                parallel=ParallelConfig.for_plan(**self.options, rank=rank),
            )
            degree = self.parallel.tp_degree * self.parallel.weight_degree
            self.ahead[weights] = RankForecast.of(graph, degree)
        return self.ahead[weights]
