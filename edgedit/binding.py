"""Keeping a rank on cores of its own, so that ranks do not push each other about and find their memory near."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgedit import host, topology
from edgedit.topology import Machine

MODES = ("auto", "none", "core", "numa")
ENVIRONMENT = "EDGEDIT_BIND"
# Whoever sets one of these places threads himself.
_PLACED_BY = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")


@dataclass(frozen=True)
class Binding:
    """Where a rank runs.

    cpus  hardware threads that it is kept on; empty where it is left as it is
    text  what was decided, or why nothing was
    """

    cpus: tuple[int, ...]
    text: str


def decide(
    mode: str, rank: int, ranks: int, machine: Machine, *, threads: int | None = None, launcher_bound: bool = False,
    env: Mapping[str, str] | None = None,
) -> Binding:  # fmt: skip
    """What `mode` means for one of `ranks` ranks on a host.

    none  leave it alone
    core  as many cores of its own as fit
    numa  any core of the NUMA nodes of those
    auto  core where several ranks share the host, there is a whole core for each, and each has as many cores as it will
          have `threads`, if that is given; `EDGEDIT_BIND` may say otherwise

    Where a launcher has bound the rank, or the user places OpenMP's threads, that stands. Raises ValueError for an
    unknown mode, and for core with more ranks than hardware threads.
    """
    env = os.environ if env is None else env
    asked = mode
    if mode == "auto":
        asked = mode = env.get(ENVIRONMENT, "auto")
    if mode not in MODES:
        raise ValueError(f"bind is {mode!r}; legal: {', '.join(MODES)}")
    if mode == "none":
        return Binding((), "none: left to the system")
    if launcher_bound:
        return Binding((), f"by the launcher: cores {_shown(machine)}")
    placed_by = [name for name in _PLACED_BY if env.get(name)]
    if placed_by:
        return Binding((), f"none: {placed_by[0]} places threads")
    if mode == "auto":
        reason = _reason_against(machine, ranks, threads)
        if reason:
            return Binding((), f"none: {reason}")
        mode = "core"
    if mode == "core" and ranks > len(machine.cpus):
        raise ValueError(f"bind core: {ranks} ranks on {machine.num_cores} cores; legal: auto, none, numa")
    place = topology.share if mode == "core" else topology.node_of_rank
    cpus = tuple(cpu.number for cpu in place(machine, rank, ranks))
    nodes = sorted({cpu.node for cpu in machine.cpus if cpu.number in cpus})
    where = f"NUMA node{'s' if len(nodes) > 1 else ''} {topology.shown(nodes)}"
    return Binding(cpus, f"{asked}: cores {topology.shown(cpus)} of {_shown(machine)}, {where}")


def bind(mode: str, local_rank: int, local_world_size: int, threads: int | None = None) -> Binding:
    """Decide for this process and keep all its threads there, those that it will start included.

    Memory that they touch first is then near. So this comes before weights are loaded and before ggml starts threads.
    """
    bound = host.bound_by_launcher()
    binding = decide(
        mode, local_rank, local_world_size, host.machine(), threads=threads, launcher_bound=bound
    )
    if binding.cpus:
        os.sched_setaffinity(0, binding.cpus)  # this thread and those that it will start
        for thread in _threads():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, binding.cpus)
    return binding


def _reason_against(machine: Machine, ranks: int, threads: int | None) -> str:
    if ranks == 1:
        return "one rank on this host"
    if machine.quota is not None and machine.quota < len(machine.cores):
        # Others under quotas of their own would be sent to the same cores.
        return f"time for {machine.quota:g} cores, on any of {len(machine.cores)}"
    if ranks > machine.num_cores:
        return f"{ranks} ranks share {machine.num_cores} cores"
    if threads is not None and threads > machine.num_cores // ranks:
        return f"{threads} threads a rank on {machine.num_cores // ranks} cores"
    return ""


def _shown(machine: Machine) -> str:
    return topology.shown([cpu.number for cpu in machine.cpus])


def _threads() -> list[int]:
    try:
        return [int(path.name) for path in Path("/proc/self/task").iterdir()]
    except OSError:
        return [0]
