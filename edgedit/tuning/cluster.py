"""Machines that are not there, described in TOML: nodes, devices per node, their rates and memory, and links.

    name = "two nodes of eight"
    nodes = 2
    devices_per_node = 8
    kernels = "ggml"               # whose nodes the graphs are made of (default: ggml)

    [device]
    memory_gib = 80
    memory_gb_per_s = 3000         # of nodes that are neither products nor attention
    node_us = 4                    # every node costs that besides (default: 0)
    pass_ms = 0.5                  # every forward pass costs that besides (default: 0)
    product_tflop_per_s = {bf16 = 400, f32 = 50}       # by type of the weights; or [[rows, rate], ...] for a type
    attention_tflop_per_s = 250                        # or [[keys, rate], ...]

    [link.intra]                   # between devices of one node
    latency_us = 3
    gb_per_s = 150                 # of each device
    overlap = 1.0                  # share of a transfer that runs beside compute (default: 1)

    [link.inter]                   # between nodes
    latency_us = 10
    gb_per_s = 50                  # of a node, shared by its devices

Prefixes are decimal but for GiB.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedit import kernels
from edgedit.tuning.machine import ANY, INTER, INTRA, Curve, Link, Machine, Rates

_MICRO, _MILLI, _GIGA, _TERA, _GIB = 1e-6, 1e-3, 1e9, 1e12, 2**30


@dataclass(frozen=True)
class Cluster:
    """A machine with a number of nodes.

    kernels  family whose nodes the graphs of its ranks are made of
    """

    machine: Machine
    kernels: str

    @property
    def nodes(self) -> int:
        assert self.machine.num_nodes is not None, "a cluster has a number of nodes"
        return self.machine.num_nodes

    @property
    def num_devices(self) -> int:
        return self.nodes * self.machine.ranks_per_node


def read_cluster(path: Path) -> Cluster:
    """The cluster of a file. ValueError names what is missing, malformed or unknown in it."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the cluster {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    return _cluster(_Table(str(path), values))


class _Table:
    """A table of the file, read key by key; what is left at the end is unknown."""

    def __init__(self, where: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{where} is {values!r}; it must be a table")
        self.where = where
        self.values = dict(values)

    def number(self, key: str, default: float | None = None, *, lowest: float = 0.0) -> float:
        """A number above `lowest`, or equal to it where there is a default."""
        value = self.values.pop(key, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or value < lowest or (default is None and value == lowest):
            bound = f"{'above' if default is None else 'of at least'} {lowest:g}"
            raise ValueError(f"{self.where}: {key} is {value!r}; it must be a number {bound}")
        return float(value)

    def count(self, key: str) -> int:
        value = self.number(key)
        if value != int(value):
            raise ValueError(f"{self.where}: {key} is {value:g}; it must be a whole number")
        return int(value)

    def word(self, key: str, default: str, legal: tuple[str, ...] = ()) -> str:
        value = self.values.pop(key, default)
        if not isinstance(value, str) or (legal and value not in legal):
            raise ValueError(f"{self.where}: {key} is {value!r}; legal: {', '.join(legal) or 'a text'}")
        return value

    def table(self, key: str) -> _Table:
        return _Table(f"{self.where}: {key}", self.values.pop(key, None))

    def curve(self, key: str, unit: float) -> Curve:
        """A number, or pairs of a size and a number."""
        value = self.values.pop(key, None)
        pairs = value if isinstance(value, list) else [[1.0, value]]
        try:
            return Curve(tuple((float(size), float(rate) * unit) for size, rate in pairs))
        except (TypeError, ValueError):
            raise ValueError(
                f"{self.where}: {key} is {value!r}; it must be a number above 0 or pairs of ascending sizes and rates"
            ) from None

    def end(self) -> None:
        if self.values:
            raise ValueError(f"{self.where}: unknown {', '.join(sorted(self.values))}")


def _cluster(table: _Table) -> Cluster:
    name = table.word("name", "the cluster")
    nodes, per_node = table.count("nodes"), table.count("devices_per_node")
    family = table.word("kernels", "ggml", kernels.FAMILIES)
    device, links = table.table("device"), table.table("link")
    table.end()
    places = [place for place, count in ((INTRA, per_node), (INTER, nodes)) if count > 1]
    machine = Machine(
        name=name,
        rates=_rates(device),
        links={place: {ANY: _link(links.table(place), is_shared=place == INTER)} for place in places},
        ranks_per_node=per_node,
        memory_nbytes=int(device.number("memory_gib") * _GIB),
        num_nodes=nodes,
    )
    device.end()
    links.values = {key: value for key, value in links.values.items() if key not in (INTRA, INTER)}
    links.end()
    return Cluster(machine, family)


def _rates(device: _Table) -> dict[str, Rates]:
    attention = device.curve("attention_tflop_per_s", _TERA)
    other = device.number("memory_gb_per_s") * _GIGA
    node_s, pass_s = device.number("node_us", 0.0) * _MICRO, device.number("pass_ms", 0.0) * _MILLI
    products = device.table("product_tflop_per_s")
    if not products.values:
        raise ValueError(f"{products.where} names no type of weights; such as bf16 = 400")
    return {
        dtype: Rates(products.curve(dtype, _TERA), attention, other, node_s, pass_s=pass_s)
        for dtype in list(products.values)
    }


def _link(table: _Table, is_shared: bool) -> Link:
    link = Link(
        table.number("latency_us", 0.0) * _MICRO,
        table.number("gb_per_s") * _GIGA,
        table.number("overlap", 1.0),
        is_shared,
    )
    table.end()
    if link.overlap > 1:
        raise ValueError(f"{table.where}: overlap is {link.overlap:g}; it must be from 0 to 1")
    return link
