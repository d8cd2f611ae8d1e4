"""``edgedit plan --auto`` and ``--cluster``: how long layouts take, on this host or on machines that are not there."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgedit import host
from edgedit.commands import layouts
from edgedit.commands.options import parallel_options
from edgedit.commands.plan_subject import find_subject, request_of, work_of_image
from edgedit.config import AXES, ParallelConfig
from edgedit.graph.page import table
from edgedit.graph.units import binary
from edgedit.parallel.mesh import Mesh
from edgedit.topology import shown
from edgedit.tuning.cluster import Cluster, read_cluster
from edgedit.tuning.search import CostModel, Prediction, Work
from edgedit.tuning.topology import Topology

_MANY_NODES, _ROWS = 8, 12


@dataclass
class _Page:
    """What is printed: predictions, the best first."""

    title: str
    place: str
    steps: int
    predictions: Sequence[Prediction]
    notes: list[str] = field(default_factory=list)
    topology: Topology | None = None  # of the first one, on a cluster


def run(args: argparse.Namespace) -> int:
    subject = find_subject(args.model)
    request = request_of(args, subject)
    cluster = read_cluster(args.cluster) if args.cluster is not None else None
    if cluster is not None and args.kernels == "auto":
        args.kernels = cluster.kernels
    image_tokens, steps = work_of_image(args, subject, request)
    work = replace(layouts.work_of(args, subject, request), image_tokens=image_tokens)
    _check_ranks(args, cluster)
    place = "this host"
    if cluster is not None:
        place = f"{cluster.machine.name}: {cluster.nodes} x {cluster.machine.ranks_per_node} devices"
    page = _Page(
        f"{subject.title} at {request.width} x {request.height} px, {args.dtype}, batch {request.batch}",
        place,
        steps,
        (),
    )
    if args.auto:
        layouts.check_auto(args)
        machine_for = (lambda _: cluster.machine) if cluster else layouts.measured_here(args)
        page.predictions, page.notes = layouts.ranked(work, machine_for, _world_sizes(args, cluster))
        page.notes.insert(0, layouts.verdict(page.predictions[0], page.predictions[1:]))
    else:
        assert cluster is not None, "either --auto or --cluster"
        page.predictions, page.notes = _of_flags(args, work, cluster)
    if cluster is not None:
        page.topology = Topology(Mesh(page.predictions[0].degrees), cluster.machine)
    print(json.dumps(_as_json(page)) if args.json else _as_text(page))
    return 0


def _check_ranks(args: argparse.Namespace, cluster: Cluster | None) -> None:
    if args.ranks is None:
        return
    most = cluster.num_devices if cluster else None
    if not args.auto or args.ranks < 1 or (most is not None and args.ranks > most):
        legal = "with --auto, 1" + (f" to {most}" if most is not None else " or more")
        raise ValueError(f"--ranks is {args.ranks}; legal: {legal}")


def _world_sizes(args: argparse.Namespace, cluster: Cluster | None) -> Iterable[int]:
    """One rank is always among them, to compare with."""
    if args.ranks is not None:
        return [args.ranks, 1]
    return [cluster.num_devices, 1] if cluster else range(1, host.machine().num_cores + 1)


def _of_flags(args: argparse.Namespace, work: Work, cluster: Cluster) -> tuple[list[Prediction], list[str]]:
    """The layout of the command line, and one rank to compare it with."""
    options, chosen = parallel_options(args, work.config.num_attention_heads)
    parallel = ParallelConfig.for_plan(**options)
    work.network.check_parallel(work.config, parallel)
    topology = Topology(Mesh(parallel), cluster.machine)
    if not topology.fits:
        raise ValueError(
            f"{parallel.world_size} ranks take {topology.num_nodes} nodes with {topology.capacity} on each; "
            f"the cluster has {cluster.nodes} of {cluster.machine.ranks_per_node} devices"
        )
    model = CostModel(work, cluster.machine)
    predictions = [model.predict(parallel.axes)]
    if parallel.world_size > 1:
        predictions.append(model.predict(dict.fromkeys(AXES, 1)))
    notes = [chosen] if chosen else []
    if model.rates_dtype != work.dtype:
        notes.append(f"the cluster has no rates for {work.dtype}; they are those of {model.rates_dtype}")
    return predictions, notes


def _nodes(topology: Topology) -> list[tuple[int, range]]:
    """The ranks of every node in use."""
    size, capacity = topology.mesh.world_size, topology.capacity
    return [(node, range(first, min(first + capacity, size)))
            for node, first in enumerate(range(0, size, capacity))]  # fmt: skip


def _places(topology: Topology) -> dict[str, str]:
    """Axis in use -> whether its groups stay inside a node."""
    return {axis: topology.place_of(axis) for axis, degree in topology.mesh.degrees.items() if degree > 1}


def _as_json(page: _Page) -> dict[str, Any]:
    values = {
        "title": page.title,
        "machine": page.place,
        "steps": page.steps,
        "chosen": layouts.as_json(page.predictions[0]),
        "layouts": [layouts.as_json(prediction) for prediction in page.predictions],
        "notes": page.notes,
    }
    if page.topology is not None:
        values["nodes"] = [list(ranks) for _, ranks in _nodes(page.topology)]
        values["links"] = _places(page.topology)
    return values


def _as_text(page: _Page) -> str:
    rows = [["layout", "ranks", "step", "compute", "exposed", f"{page.steps} steps", "memory"]]
    for prediction in _shown(page.predictions):
        step = prediction.step
        times = (step.total, step.compute, step.exposed, page.steps * step.total)
        memory = binary(prediction.memory_nbytes) + ("" if prediction.fits else " does not fit")
        rows.append(
            [prediction.flags, str(prediction.world_size), *(layouts.seconds(t) for t in times), memory]
        )
    lines = [page.title, page.place, "", *table(rows, left=frozenset({0}))]
    if page.topology is not None:
        lines += ["", *_map(page.topology)]
    return "\n".join([*lines, "", *(f"note: {note}" for note in page.notes)]).rstrip()


def _shown(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The first ones, and one rank alone wherever it stands."""
    rest = [prediction for prediction in predictions[_ROWS:] if prediction.world_size == 1]
    return [*predictions[:_ROWS], *rest]


def _map(topology: Topology) -> list[str]:
    nodes = _nodes(topology)
    if len(nodes) > _MANY_NODES:
        lines = [f"nodes 0 to {len(nodes) - 1}: {topology.capacity} ranks each, in order"]
    else:
        lines = [f"node {node}: ranks {shown(ranks)}" for node, ranks in nodes]
    words = {"intra": "inside nodes", "inter": "across nodes"}
    return [*lines, *(f"{axis}: {words[place]}" for axis, place in _places(topology).items())]
