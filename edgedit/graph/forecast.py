"""What a layout will do, rank by rank, told from schedules alone: work, bytes on the wire, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from edgedit.config import AXES
from edgedit.graph.collective import Collective
from edgedit.graph.description import GraphDescription
from edgedit.graph.planner import plan
from edgedit.graph.schedule import Flight, Schedule
from edgedit.parallel.mesh import WORLD, Mesh
from edgedit.parallel.split import branches_of

PREDICTION_DTYPE = "f32"
SKIPPING = 2  # the guidance branch that leaves blocks out; it reads the text of the one before it


@dataclass(frozen=True)
class RankForecast:
    """The graph of one rank and its schedule. Ranks with equal shards share one object.

    ahead  what the rank computes of each branch ahead of its steps, which read the outputs
    """

    graph: GraphDescription
    schedule: Schedule
    ahead: RankForecast | None = None

    @classmethod
    def of(cls, graph: GraphDescription, degree: int, ahead: RankForecast | None = None) -> RankForecast:
        return cls(graph, plan(graph.nodes, graph.collectives, graph.outputs, degree=degree), ahead)

    @cached_property
    def idle(self) -> RankForecast:
        """Of a rank that has the same weights and nothing to run."""
        graph = replace(self.graph, nodes=(), collectives=(), outputs=(), input_nbytes=0)
        return RankForecast.of(graph, degree=1)

    @property
    def weight_nbytes(self) -> int:
        return sum(self.graph.weight_nbytes.values())

    @property
    def run_nbytes(self) -> int:
        """Activations and inputs."""
        return self.schedule.buffer_nbytes + self.graph.input_nbytes

    @property
    def output_nbytes(self) -> int:
        return sum(self.graph.nodes[index].nbytes for index in self.graph.outputs)


def prediction_exchange(
    graph: GraphDescription,
    own_tokens: tuple[int, int],
    branches: int,
    size: int,
    place: int = 0,
    active: int | None = None,
) -> Collective | None:
    """The exchange of guidance predictions that ends a step, as one of `size` cfg ranks sees it; None without one.

    own_tokens  of the image tokens that the graph puts out, those of what is drawn, and all
    active      predictions there are, the first of the branches; all by default
    """
    if size == 1 or branches == 1:
        return None
    own, every = own_tokens
    count = sum(prod(graph.nodes[index].shape) for index in graph.outputs) * own // every
    active = branches if active is None else active
    held = (branches_of(other, branches, size) for other in range(size))
    counts = tuple(count * sum(branch < active for branch in of_place) for of_place in held)
    sent = (counts[place],) * size
    return Collective("all_gather", "prediction", "cfg", PREDICTION_DTYPE, -1, -1, -1, sent, counts, place)


@dataclass(frozen=True)
class Skipping:
    """The third guidance branch: the graph of each world rank without some blocks, and the steps in which it runs."""

    ranks: tuple[RankForecast, ...]
    steps: int


@dataclass(frozen=True)
class Pass:
    """A forward pass of a rank: of a guidance branch, in some of the steps."""

    branch: int
    rank: RankForecast
    steps: int


@dataclass(frozen=True)
class Forecast:
    """A run of `steps` denoising steps on the ranks of a mesh. What is told of a step is of one with all branches.

    title     what runs, in words
    facts     settings to print, in order
    ranks     one forecast per world rank
    detail    the world rank whose segments are shown
    branches  guidance branches of the request: each is one forward pass per step
    notes     what the user may not expect
    parts     how often what is computed ahead runs for a branch, each time for the next few steps
    skipping  the third branch, where there is one
    own_tokens  of the image tokens that a graph puts out, those of what is drawn, and all; branches exchange the former
    """

    title: str
    facts: Mapping[str, Any]
    mesh: Mesh
    ranks: tuple[RankForecast, ...]
    detail: int
    steps: int
    branches: int = 1
    notes: tuple[str, ...] = ()
    parts: int = 1
    skipping: Skipping | None = None
    own_tokens: tuple[int, int] = (1, 1)

    @property
    def schedule(self) -> Schedule:
        return self.ranks[self.detail].schedule

    @property
    def graph(self) -> GraphDescription:
        return self.ranks[self.detail].graph

    def passes_of(self, rank: int) -> tuple[Pass, ...]:
        """Forward passes of a world rank in a step, in order."""
        held = branches_of(self.mesh.coords(rank)["cfg"], self.branches, self.mesh.degrees["cfg"])
        return tuple(
            Pass(branch, self.skipping.ranks[rank], self.skipping.steps)
            if branch == SKIPPING and self.skipping
            else Pass(branch, self.ranks[rank], self.steps)
            for branch in held
        )

    @cached_property
    def passes(self) -> int:
        """Most forward passes of a rank in a step."""
        return max(len(self.passes_of(rank)) for rank in range(self.mesh.world_size))

    def _guidance(self, rank: int, branches: int) -> Collective | None:
        """The exchange of the first so many predictions, as a rank sees it; it is outside the graph."""
        size, place = self.mesh.degrees["cfg"], self.mesh.coords(rank)["cfg"]
        return prediction_exchange(self.ranks[rank].graph, self.own_tokens, self.branches, size, place, branches)

    @cached_property
    def guidance(self) -> Collective | None:
        """The exchange of predictions that ends a step, as the rank in detail sees it."""
        return self._guidance(self.detail, self.branches)

    def _guidance_nbytes(self, rank: int, branches: int) -> int:
        exchange = self._guidance(rank, branches)
        return exchange.bytes_sent if exchange else 0

    @cached_property
    def bytes_sent_per_step(self) -> tuple[int, ...]:
        """Payload that each rank sends to others in one denoising step."""
        return tuple(
            sum(a_pass.rank.schedule.bytes_sent for a_pass in self.passes_of(rank))
            + self._guidance_nbytes(rank, self.branches)
            for rank in range(self.mesh.world_size)
        )

    @property
    def bytes_sent_ahead(self) -> tuple[int, ...]:
        """Payload that each rank sends to others ahead of the steps, in the whole run."""
        return tuple(
            self.conditions(rank) * self.parts * of_rank.ahead.schedule.bytes_sent if of_rank.ahead else 0
            for rank, of_rank in enumerate(self.ranks)
        )

    @cached_property
    def bytes_sent(self) -> tuple[int, ...]:
        """Payload that each rank sends to others in the whole run."""
        skipping = self.skipping.steps if self.skipping else 0
        sent = []
        for rank, ahead in enumerate(self.bytes_sent_ahead):
            of_passes = sum(a_pass.steps * a_pass.rank.schedule.bytes_sent for a_pass in self.passes_of(rank))
            guided = (self.steps - skipping) * self._guidance_nbytes(rank, min(self.branches, SKIPPING))
            sent.append(of_passes + guided + skipping * self._guidance_nbytes(rank, self.branches) + ahead)
        return tuple(sent)

    @cached_property
    def flops_per_step(self) -> tuple[int, ...]:
        ranks = range(self.mesh.world_size)
        return tuple(sum(a_pass.rank.schedule.flops for a_pass in self.passes_of(rank)) for rank in ranks)

    def conditions(self, rank: int) -> int:
        """Texts that the passes of a world rank read: what is computed ahead is computed for each."""
        return len({min(a_pass.branch, SKIPPING - 1) for a_pass in self.passes_of(rank)})

    def flops_ahead(self, rank: int) -> int:
        """Of a world rank, in the whole run."""
        ahead = self.ranks[rank].ahead
        return self.conditions(rank) * self.parts * ahead.schedule.flops if ahead else 0

    def kept_nbytes(self, rank: int) -> int:
        """Of what is computed ahead: the results, which a world rank keeps until the steps have read them."""
        ahead = self.ranks[rank].ahead
        return self.conditions(rank) * ahead.output_nbytes if ahead else 0

    def ahead_nbytes(self, rank: int) -> int:
        """Memory that a world rank needs for what is computed ahead, results included."""
        ahead = self.ranks[rank].ahead
        return ahead.run_nbytes + self.kept_nbytes(rank) if ahead else 0

    def run_nbytes(self, rank: int) -> tuple[int, int]:
        """Activations and inputs of all graphs of a world rank. Graphs stay allocated for the next request, so nothing
        is shared."""
        graphs = {id(a_pass.rank): a_pass.rank for a_pass in self.passes_of(rank)}.values()
        buffers = sum(of_rank.schedule.buffer_nbytes for of_rank in graphs)
        return buffers, sum(of_rank.graph.input_nbytes for of_rank in graphs)

    def total_nbytes(self, rank: int) -> int:
        """Weights of a world rank and all memory beside them."""
        return self.ranks[rank].weight_nbytes + sum(self.run_nbytes(rank)) + self.ahead_nbytes(rank)

    @property
    def groups(self) -> dict[str, list[list[int]]]:
        """Rank lists of every axis and of the world."""
        return {axis: self.mesh.groups(axis) for axis in (*AXES, WORLD)}


def as_json(forecast: Forecast) -> dict[str, Any]:
    """The forecast as plain values. Segments and collectives are those of the rank in detail."""
    schedule = forecast.schedule
    collectives = [
        _collective(collective, flight)
        for collective, flight in zip(schedule.collectives, schedule.overlapped, strict=True)
    ]
    if forecast.guidance:
        collectives.append(_collective(forecast.guidance, Flight()))
    return {
        **forecast.facts,
        "world_size": forecast.mesh.world_size,
        "axes": dict(forecast.mesh.degrees),
        "groups": forecast.groups,
        "steps": forecast.steps,
        "passes_per_step": forecast.passes,
        "schedule_digest": schedule.digest,
        "bytes_sent": list(forecast.bytes_sent),
        "bytes_sent_per_step": list(forecast.bytes_sent_per_step),
        "flops_per_step": list(forecast.flops_per_step),
        "flops_ahead": forecast.flops_ahead(forecast.detail),
        "memory": [
            {"rank": rank, "coords": forecast.mesh.coords(rank), **_memory(forecast, rank)}
            for rank in range(forecast.mesh.world_size)
        ],
        "rank": forecast.detail,
        "segments": [
            {
                "index": segment.index,
                "nodes": segment.end - segment.begin,
                "flops": segment.flops,
                "nbytes": segment.nbytes,
                "reads": len(segment.reads),
                "receives": [schedule.collectives[c].name for c in segment.receives],
            }
            for segment in schedule.segments
        ],
        "collectives": collectives,
        "notes": list(forecast.notes),
    }


def _collective(collective: Collective, flight: Flight) -> dict[str, Any]:
    return {
        "name": collective.name,
        "kind": collective.kind,
        "axis": collective.axis,
        "dtype": collective.dtype,
        "count": collective.global_count,
        "bytes_per_peer": list(collective.bytes_per_peer),
        "bytes_sent": collective.bytes_sent,
        "overlap": {
            "segments": list(flight.segments),
            "nodes": len(flight.nodes),
            "flops": flight.flops,
        },
    }


def _memory(forecast: Forecast, rank: int) -> dict[str, Any]:
    compute, inputs = forecast.run_nbytes(rank)
    return {
        "weights": dict(forecast.ranks[rank].graph.weight_nbytes),
        "compute": compute,
        "inputs": inputs,
        "ahead": forecast.ahead_nbytes(rank),
        "total": forecast.total_nbytes(rank),
    }
