"""What the cost model knows of a machine: rates of a rank, and links between ranks. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

INTRA, INTER = "intra", "inter"  # links between ranks of one node, and between nodes
ANY = "any"  # the kind of collective that stands for those which a machine does not tell apart
_LEAST_S_PER_BYTE = 1e-18  # where bytes cost nothing


@dataclass(frozen=True)
class Curve:
    """A rate over a size: linear in the size's logarithm between `points`, constant beyond them.

    points  (size, rate), sizes ascending and above 0; at least one
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        numbers = [number for pair in self.points for number in pair]
        if not sizes or sizes != sorted(set(sizes)) or not all(0 < number < math.inf for number in numbers):
            raise ValueError(f"a curve needs ascending sizes and rates above 0, got {list(self.points)}")

    @classmethod
    def flat(cls, rate: float) -> Curve:
        return cls(((1.0, rate),))

    def at(self, size: float) -> float:
        index = bisect_left(self.points, (size, 0.0))
        if index == 0:
            return self.points[0][1]
        if index == len(self.points):
            return self.points[-1][1]
        (low, slow), (high, fast) = self.points[index - 1 : index + 1]
        share = math.log(size / low) / math.log(high / low)
        return slow + share * (fast - slow)


@dataclass(frozen=True)
class Rates:
    """How fast one rank computes with one type of weights, all ranks of its node at work.

    product    FLOP/s of products with weights, over their rows
    attention  FLOP/s over the number of keys
    other      bytes/s that all other nodes read and write
    node_s     seconds that any node costs besides
    segment_s  seconds that a segment of a graph costs besides, where it is run by itself
    pass_s     seconds that a forward pass costs besides: inputs, outputs, the solver
    """

    product: Curve
    attention: Curve
    other: float
    node_s: float = 0.0
    segment_s: float = 0.0
    pass_s: float = 0.0


@dataclass(frozen=True)
class Link:
    """How long a rank is busy sending [Hockney 1994]: `latency_s` a peer, and bytes / `bytes_per_s`.

    overlap    share of that during which the rank can compute
    is_shared  True where `bytes_per_s` is that of a node, shared by its ranks; False where each rank has as much
    """

    latency_s: float
    bytes_per_s: float
    overlap: float = 0.0
    is_shared: bool = False


@dataclass(frozen=True)
class Machine:
    """Where ranks run.

    rates          type of the weights -> rates of a rank
    links          INTRA, INTER -> kind of collective, or ANY -> link
    ranks_per_node ranks that one node takes
    memory_nbytes  of each rank; None where it is not known
    comm           who runs the collectives, see `ParallelConfig`
    num_nodes      nodes that there are; None for any number
    is_filled      True where a launcher has put `ranks_per_node` ranks on each node; False where a node takes whole
                   groups of tp x ulysses ranks, and may have places left
    """

    name: str
    rates: Mapping[str, Rates]
    links: Mapping[str, Mapping[str, Link]] = field(default_factory=dict)
    ranks_per_node: int = 1
    memory_nbytes: int | None = None
    comm: str = "in-graph"
    num_nodes: int | None = None
    is_filled: bool = False

    def rates_for(self, dtype: str) -> tuple[Rates, str]:
        """The rates of a type, and the type that they were given for: another one where this is not known."""
        known = dtype if dtype in self.rates else next(iter(self.rates))
        return self.rates[known], known

    def link(self, place: str, kind: str) -> Link:
        """Raises ValueError where the machine has no such link."""
        links = self.links.get(place, {})
        found = links.get(kind) or links.get(ANY) or next(iter(links.values()), None)
        if found is None:
            between = "ranks of one node" if place == INTRA else "nodes"
            raise ValueError(
                f"nothing is known of {self.name}'s links between {between}; edgedit tune, under mpirun with several "
                "ranks on each of them, measures what is there"
            )
        return found


def fitted_link(
    times: Iterable[tuple[float, float]], peers: int, overlap: float = 0.0, is_shared: bool = False
) -> Link:
    """The link whose times are nearest to (bytes sent, seconds) measured with so many peers, in relative terms.

    Least squares of (latency + bytes / rate - seconds) / seconds; neither number is below 0.
    """
    times = [(nbytes, seconds) for nbytes, seconds in times if seconds > 0]
    assert times and peers > 0, f"{times} over {peers} peers"
    weights = [(1 / seconds, nbytes / seconds) for nbytes, seconds in times]
    aa, ab, bb = (sum(x[i] * x[j] for x in weights) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = (sum(x[i] for x in weights) for i in (0, 1))
    determinant = aa * bb - ab * ab
    latency, slope = 0.0, b / bb if bb else 0.0
    if determinant > 1e-12 * aa * bb:
        latency, slope = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if slope <= 0:
        latency, slope = a / aa, 0.0
    elif latency < 0:
        latency, slope = 0.0, b / bb
    return Link(latency / peers, 1 / max(slope, _LEAST_S_PER_BYTE), overlap, is_shared)


def as_json(machine: Machine) -> dict[str, Any]:
    """Plain values, which `from_json` reads back."""
    return {
        "name": machine.name,
        "rates": {
            dtype: {
                "product": [list(point) for point in rates.product.points],
                "attention": [list(point) for point in rates.attention.points],
                **{name: getattr(rates, name) for name in ("other", "node_s", "segment_s", "pass_s")},
            }
            for dtype, rates in machine.rates.items()
        },
        "links": {
            place: {kind: dict(vars(link)) for kind, link in links.items()}
            for place, links in machine.links.items()
        },
        "ranks_per_node": machine.ranks_per_node,
        "memory_nbytes": machine.memory_nbytes,
        "comm": machine.comm,
    }


def from_json(values: Mapping[str, Any]) -> Machine:
    """Raises ValueError, KeyError or TypeError for what `as_json` has not made."""
    rates = {
        dtype: Rates(**{**given, **{name: _curve(given[name]) for name in ("product", "attention")}})
        for dtype, given in values["rates"].items()
    }
    links = {
        place: {kind: Link(**link) for kind, link in kinds.items()}
        for place, kinds in values["links"].items()
    }
    rest = {name: values[name] for name in ("name", "ranks_per_node", "memory_nbytes", "comm")}
    return Machine(rates=rates, links=links, **rest)


def _curve(points: Iterable[Iterable[float]]) -> Curve:
    return Curve(tuple((size, rate) for size, rate in points))
