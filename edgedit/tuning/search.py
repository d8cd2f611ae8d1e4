"""The legal layouts of so many ranks, and what the cost model says of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgedit.config import AXES, ParallelConfig
from edgedit.degrees import flags
from edgedit.graph.forecast import RankForecast, prediction_exchange
from edgedit.parallel.mesh import Mesh
from edgedit.parallel.split import array_split
from edgedit.tuning.cost_model import Seconds, Transfer, pass_seconds, passes_per_step
from edgedit.tuning.machine import Machine
from edgedit.tuning.topology import Topology

if TYPE_CHECKING:
    from edgedit.models.diffusion_transformer import DiffusionTransformer

MOST_HOPS = 64  # of a ring: each one is a latency more and a smaller piece of work, and graphs of more are large
MANY_RANKS = 64
_WHOLE_BRANCHES = 2  # a third guidance branch leaves layers out
MUCH_SLOWER = 1.5
EQUAL = 1.02  # times whose ratio is less: measurements are no better than that


@dataclass(frozen=True)
class Work:
    """What a request asks of the transformer in each step.

    batch         pictures
    image_tokens  of one picture, all that are read
    drawn_tokens  of those the ones that are drawn; the others are of a picture that is looked at
    text_tokens   of one picture, all of them
    branches      guidance branches
    options       the fields of `ParallelConfig` that are no degrees
    """

    network: type[DiffusionTransformer]
    config: Any
    batch: int
    image_tokens: int
    drawn_tokens: int
    text_tokens: int
    branches: int
    dtype: str
    options: Mapping[str, Any]

    @property
    def shards_weights(self) -> bool:
        return self.options.get("weight_residency") == "sharded"


@dataclass(frozen=True)
class Prediction:
    """Of one layout.

    step           seconds of a step of the whole batch
    weight_nbytes  of the rank that needs most
    memory_nbytes  the same with activations and inputs of a step
    fits           False where the machine's ranks have less memory than that
    """

    degrees: Mapping[str, int]
    step: Seconds
    weight_nbytes: int
    memory_nbytes: int
    fits: bool

    @property
    def world_size(self) -> int:
        return math.prod(self.degrees.values())

    @property
    def flags(self) -> str:
        """As on the command line; "one rank" for a layout without any."""
        return flags(self.degrees) or "one rank"


def legal_layouts(work: Work, world_size: int) -> Iterator[dict[str, int]]:
    """Every way of sharing the work over exactly so many ranks in which none repeats what another does, but for rings
    of more than MOST_HOPS ranks."""
    from edgedit.models.diffusion_transformer import SUPPORTED_AXES

    most = {"cfg": work.branches, "dp": work.batch, "ring": MOST_HOPS}
    for degrees in _factorisations(world_size, [axis for axis in AXES if axis in SUPPORTED_AXES]):
        if all(degrees.get(axis, 1) <= limit for axis, limit in most.items()) and _is_legal(work, degrees):
            yield {axis: degrees.get(axis, 1) for axis in AXES}


def _factorisations(number: int, axes: list[str]) -> Iterator[dict[str, int]]:
    if not axes:
        if number == 1:
            yield {}
        return
    for degree in range(1, number + 1):
        if number % degree == 0:
            for rest in _factorisations(number // degree, axes[1:]):
                yield {axes[0]: degree, **rest}


def _is_legal(work: Work, degrees: Mapping[str, int]) -> bool:
    if work.shards_weights and not _runs_in_step(work, degrees):
        return False
    try:
        work.network.check_parallel(work.config, parallel_config(work, degrees))
    except ValueError:
        return False
    return True


def _runs_in_step(work: Work, degrees: Mapping[str, int]) -> bool:
    """Whether all ranks run the same blocks as often, as those must that keep each other's weights."""
    cfg, dp = degrees.get("cfg", 1), degrees.get("dp", 1)
    if work.batch % dp or work.branches % cfg:
        return False
    return cfg == 1 or work.branches <= _WHOLE_BRANCHES


def parallel_config(work: Work, degrees: Mapping[str, int]) -> ParallelConfig:
    return ParallelConfig.for_plan(
        **work.options, **{f"{axis}_degree": degree for axis, degree in degrees.items()}
    )


def by_preference(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Those that fit first, then by time; of those that are as good as the fastest, the ones of fewest ranks first."""
    ordered = sorted(predictions, key=lambda p: (not p.fits, p.step.total))
    first = ordered[0]
    equal = [p for p in ordered if p.fits == first.fits and p.step.total <= EQUAL * first.step.total]
    return [*sorted(equal, key=lambda p: p.world_size), *ordered[len(equal) :]]


def _fastest(predictions: Iterable[Prediction]) -> float:
    """Seconds of the fastest one that fits; infinite where none does."""
    return min((p.step.total for p in predictions if p.fits), default=math.inf)


class CostModel:
    """Predicts layouts of one piece of work on one machine; see `cost_model` for the formula."""

    def __init__(self, work: Work, machine: Machine) -> None:
        self.work = work
        self.machine = machine
        self.rates, self.rates_dtype = machine.rates_for(work.dtype)
        self._known: dict[tuple[int, ...], list[tuple[int, RankForecast]]] = {}

    def ranked(self, world_size: int) -> list[Prediction]:
        """Predictions of all legal layouts of so many ranks on the nodes that there are: those that fit into memory
        first, then by time.

        Of more than MANY_RANKS those are predicted first in which the fewest ranks share a pass. Once the best one in
        which more ranks do is much slower than the best of all, no more are looked at.
        """
        by_sharing: dict[int, list[dict[str, int]]] = {}
        for degrees in legal_layouts(self.work, world_size):
            if not Topology(Mesh(degrees), self.machine).fits:
                continue
            by_sharing.setdefault(world_size // (degrees["cfg"] * degrees["dp"]), []).append(degrees)
        found: list[Prediction] = []
        for sharing in sorted(by_sharing):
            here = [self.predict(degrees) for degrees in by_sharing[sharing]]
            best, best_here = (_fastest(predictions) for predictions in (found, here))
            found += here
            if world_size > MANY_RANKS and best_here > MUCH_SLOWER * best:
                break
        return sorted(found, key=lambda p: (not p.fits, p.step.total))

    def predict(self, degrees: Mapping[str, int]) -> Prediction:
        """Of one legal layout. Raises ValueError where the machine lacks the links for it."""
        topology = Topology(Mesh(degrees), self.machine)
        forecasts = self._forecasts(degrees)
        weights = sum(weight * forecast.weight_nbytes for weight, forecast in forecasts)
        memory = weights + max(forecast.run_nbytes for _, forecast in forecasts)
        a_pass = Seconds(0.0, 0.0)
        for weight, forecast in forecasts:
            seconds = pass_seconds(
                forecast, self.rates, topology.transfer, cut=self.machine.comm == "graph-cut"
            )
            a_pass = a_pass.plus(seconds.times(weight))
        passes = passes_per_step(self.work.branches, degrees.get("cfg", 1))
        step = a_pass.plus(Seconds(self.rates.pass_s, 0.0)).times(passes)
        step = step.plus(Seconds(0.0, self._guidance(degrees, topology, forecasts[0][1]).seconds))
        limit = self.machine.memory_nbytes
        return Prediction(dict(degrees), step, weights, memory, limit is None or memory <= limit)

    def _guidance(self, degrees: Mapping[str, int], topology: Topology, forecast: RankForecast) -> Transfer:
        """The exchange of the predictions that ends a step."""
        drawn = (self.work.drawn_tokens, self.work.image_tokens)
        exchange = prediction_exchange(forecast.graph, drawn, self.work.branches, degrees.get("cfg", 1))
        return topology.transfer(exchange) if exchange else Transfer(0.0, 0.0, "")

    def _forecasts(self, degrees: Mapping[str, int]) -> list[tuple[int, RankForecast]]:
        """Of rank 0, whose share is the largest along every axis: a weighted sum of shallow networks."""
        from edgedit.models.shallow import shallow_configs

        batch = array_split(self.work.batch, degrees.get("dp", 1))[0]
        apart = () if self.work.shards_weights else ("cfg", "dp")  # axes whose ranks share nothing in a pass
        sharing = {axis: degree for axis, degree in degrees.items() if axis not in apart}
        key = (batch, *(sharing.get(axis, 1) for axis in AXES))
        if key not in self._known:
            self._known[key] = [
                (weight, self._describe(config, batch, sharing))
                for weight, config in shallow_configs(self.work.config)
            ]
        return self._known[key]

    def _describe(self, config: Any, batch: int, degrees: Mapping[str, int]) -> RankForecast:
        parallel = parallel_config(self.work, degrees)
        graph = self.work.network.describe(
            config,
            batch=batch,
            image_tokens=self.work.image_tokens,
            text_tokens=self.work.text_tokens,
            compute_dtype=self.work.dtype,
            parallel=parallel,
        )
        return RankForecast.of(graph, parallel.graph_degree)
