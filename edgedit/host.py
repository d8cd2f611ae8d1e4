"""What this host offers a rank: cores, and how many threads it should take of them."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from edgedit import cgroup, topology


def usable_cores() -> int:
    """Cores that this process may use: its CPU affinity, capped by the quota of its control groups; at least 1."""
    cores = len(_affinity(0)) or os.cpu_count() or 1
    quota = cgroup.num_cores()
    return max(1, cores if quota is None else min(cores, int(quota)))


def default_threads(local_world_size: int) -> int:
    """Compute threads for one of ``local_world_size`` ranks on this host: one for each core of its share, at least 1.

    Where the rank was bound, by its launcher or by us, it takes the cores that it is bound to, but no more than its
    share: several ranks may have been bound to the same ones.
    """
    own = machine().num_cores
    if not bound_by_launcher():
        return max(1, own // local_world_size)
    shared = topology.read(_affinity(os.getppid()), cgroup.num_cores()).num_cores
    return min(own, max(1, shared // local_world_size))


def machine() -> topology.Machine:
    """What this process may use of its host."""
    return topology.read(_affinity(0) or range(os.cpu_count() or 1), cgroup.num_cores())


def bound_by_launcher() -> bool:
    """Whether this process may run on fewer cores than the one that started it."""
    launchers = _affinity(os.getppid())
    return bool(launchers) and _affinity(0) < launchers


def memory_nbytes() -> int | None:
    """Memory of this host, capped by the limit of its control groups; None where the system does not tell."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    limit = cgroup.memory_nbytes()
    return whole if limit is None else min(whole, limit)


def rest_waiting_threads(env: MutableMapping[str, str]) -> None:
    """Make OpenMP's waiting threads give up their core instead of spinning.

    Spinning threads starve whoever shares the cores, other ranks or other programs, and then each other: a step
    can take ten times as long. Has an effect only before ggml is loaded. A value that the user set is kept.
    """
    env.setdefault("OMP_WAIT_POLICY", "passive")


def _affinity(pid: int) -> set[int]:
    """Cores that a process (0: this one) may run on; empty where the system does not tell."""
    try:
        return os.sched_getaffinity(pid)
    except (AttributeError, OSError):
        return set()
