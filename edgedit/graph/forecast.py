"""What a layout will do, rank by rank, told from schedules alone: work, bytes on the wire, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from edgedit.config import AXES
from edgedit.graph.collective import Collective
from edgedit.graph.description import GraphDescription
from edgedit.graph.planner import plan
from edgedit.graph.schedule import Flight, Schedule
from edgedit.parallel.mesh import WORLD, Mesh

PREDICTION_DTYPE = "f32"


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


@dataclass(frozen=True)
class Forecast:
    """A run of `steps` denoising steps on the ranks of a mesh.

    title     what runs, in words
    facts     settings to print, in order
    ranks     one forecast per world rank
    detail    the world rank whose segments are shown
    branches  guidance branches of the request: each is one forward pass per step
    notes     what the user may not expect
    parts     how often what is computed ahead runs for a branch, each time for the next few steps
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

    @property
    def schedule(self) -> Schedule:
        return self.ranks[self.detail].schedule

    @property
    def graph(self) -> GraphDescription:
        return self.ranks[self.detail].graph

    @cached_property
    def passes(self) -> int:
        """Forward passes of each rank per step: one rank of the cfg axis runs all branches in turn."""
        return self.branches if self.mesh.degrees["cfg"] == 1 else 1

    @cached_property
    def guidance(self) -> Collective | None:
        """The exchange of predictions that ends a step, as the rank in detail sees it; it is outside the graph."""
        size = self.mesh.degrees["cfg"]
        if size == 1 or self.branches == 1:
            return None
        count = sum(prod(self.graph.nodes[index].shape) for index in self.graph.outputs)
        rank = self.mesh.coords(self.detail)["cfg"]
        counts = (count,) * size
        return Collective(
            "all_gather", "prediction", "cfg", PREDICTION_DTYPE, -1, -1, -1, counts, counts, rank
        )

    @cached_property
    def bytes_sent_per_step(self) -> tuple[int, ...]:
        """Payload that each rank sends to others in one denoising step."""
        guidance = self.guidance.bytes_sent if self.guidance else 0
        return tuple(self.passes * rank.schedule.bytes_sent + guidance for rank in self.ranks)

    @property
    def bytes_sent_ahead(self) -> tuple[int, ...]:
        """Payload that each rank sends to others ahead of the steps, in the whole run."""
        often = self.passes * self.parts
        return tuple(often * rank.ahead.schedule.bytes_sent if rank.ahead else 0 for rank in self.ranks)

    @property
    def bytes_sent(self) -> tuple[int, ...]:
        """Payload that each rank sends to others in the whole run."""
        both = zip(self.bytes_sent_per_step, self.bytes_sent_ahead, strict=True)
        return tuple(self.steps * of_step + ahead for of_step, ahead in both)

    @property
    def flops_per_step(self) -> tuple[int, ...]:
        return tuple(self.passes * rank.schedule.flops for rank in self.ranks)

    def flops_ahead(self, rank: RankForecast) -> int:
        """In the whole run."""
        return self.passes * self.parts * rank.ahead.schedule.flops if rank.ahead else 0

    def kept_nbytes(self, rank: RankForecast) -> int:
        """Of what is computed ahead: the results, which a rank keeps until the steps have read them."""
        return self.passes * rank.ahead.output_nbytes if rank.ahead else 0

    def ahead_nbytes(self, rank: RankForecast) -> int:
        """Memory that a rank needs for what is computed ahead, results included."""
        return rank.ahead.run_nbytes + self.kept_nbytes(rank) if rank.ahead else 0

    def total_nbytes(self, rank: RankForecast) -> int:
        """Weights and all memory beside them. Graphs stay allocated for the next request, so nothing is shared."""
        return rank.weight_nbytes + rank.run_nbytes + self.ahead_nbytes(rank)

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
        "flops_ahead": forecast.flops_ahead(forecast.ranks[forecast.detail]),
        "memory": [
            {"rank": rank, "coords": forecast.mesh.coords(rank), **_memory(forecast, of_rank)}
            for rank, of_rank in enumerate(forecast.ranks)
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


def _memory(forecast: Forecast, rank: RankForecast) -> dict[str, Any]:
    return {
        "weights": dict(rank.graph.weight_nbytes),
        "compute": rank.schedule.buffer_nbytes,
        "inputs": rank.graph.input_nbytes,
        "ahead": forecast.ahead_nbytes(rank),
        "total": forecast.total_nbytes(rank),
    }
