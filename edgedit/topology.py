"""The cores of a host and how ranks share them. Pure but for `read`, which asks the system."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True, order=True)
class Cpu:
    """One hardware thread, by the number that the system gives it.

    node  NUMA node of its memory
    core  the same number for all threads of a core, different for those of others
    """

    node: int
    core: int
    number: int


@dataclass(frozen=True)
class Machine:
    """The hardware threads that a process may use.

    quota  cores' worth of time that a cgroup allows on them; None where it sets no limit
    """

    cpus: tuple[Cpu, ...]
    quota: float | None = None

    @property
    def cores(self) -> list[list[Cpu]]:
        """The threads of each core; cores of one node stand together."""
        cores: dict[tuple[int, int], list[Cpu]] = {}
        for cpu in sorted(self.cpus):
            cores.setdefault((cpu.node, cpu.core), []).append(cpu)
        return list(cores.values())

    @property
    def nodes(self) -> list[int]:
        return sorted({cpu.node for cpu in self.cpus})

    @property
    def num_cores(self) -> int:
        """Cores that can be kept busy, at least 1."""
        cores = len(self.cores)
        return max(1, cores if self.quota is None else min(cores, int(self.quota)))

    def __str__(self) -> str:
        quota = "" if self.quota is None else f", time for {self.quota:g}"
        nodes = len(self.nodes)
        return f"{nodes} NUMA node{'s' if nodes > 1 else ''}, {len(self.cores)} cores, {len(self.cpus)} threads{quota}"


def share(machine: Machine, rank: int, ranks: int) -> list[Cpu]:
    """The hardware threads for one of `ranks` ranks: as many for each, those of different ranks apart.

    One thread of each core is used; second threads only where there are more ranks than cores. Shares are runs of
    neighbouring cores, within one NUMA node unless that would cost a rank cores. Raises ValueError for more ranks than
    hardware threads.
    """
    cores = machine.cores
    if ranks > len(machine.cpus):
        raise ValueError(f"{ranks} ranks on {len(machine.cpus)} hardware threads")
    if ranks > len(cores):
        threads = max(map(len, cores))
        in_turn = [core[thread] for thread in range(threads) for core in cores if thread < len(core)]
        return [in_turn[rank]]
    first_threads = [core[0] for core in cores[: max(machine.num_cores, ranks)]]
    each = len(first_threads) // ranks
    within = _within_nodes(first_threads, ranks, each)
    return (within or first_threads)[rank * each : (rank + 1) * each]


def node_of_rank(machine: Machine, rank: int, ranks: int) -> list[Cpu]:
    """All hardware threads of the NUMA nodes that the share of a rank touches."""
    if ranks <= len(machine.cpus):
        touched = {cpu.node for cpu in share(machine, rank, ranks)}
    else:
        touched = {machine.nodes[rank * len(machine.nodes) // ranks]}
    return [cpu for cpu in sorted(machine.cpus) if cpu.node in touched]


def _within_nodes(cpus: Sequence[Cpu], ranks: int, each: int) -> list[Cpu] | None:
    """The threads in an order in which no run of `each` crosses a node; None where `ranks` runs find no place so.

    Ranks are spread evenly, so that every node's memory serves as many.
    """
    nodes: dict[int, list[Cpu]] = {}
    for cpu in cpus:
        nodes.setdefault(cpu.node, []).append(cpu)
    room = {node: len(members) // each for node, members in nodes.items()}
    if sum(room.values()) < ranks:
        return None
    placed = dict.fromkeys(nodes, 0)
    for _ in range(ranks):
        emptiest = min((node for node in nodes if placed[node] < room[node]), key=lambda node: placed[node])
        placed[emptiest] += 1
    return [cpu for node, members in nodes.items() for cpu in members[: placed[node] * each]]


def read(allowed: Iterable[int], quota: float | None, system: Path | None = None) -> Machine:
    """The machine as Linux describes it; where it says nothing, every thread is a core of one node."""
    system = system or _SYSTEM
    node_of = {}
    for path in sorted(system.glob("node/node[0-9]*/cpulist")):
        for number in _numbers(path):
            node_of[number] = int(path.parent.name.removeprefix("node"))
    cpus = []
    for number in sorted(allowed):
        siblings = _numbers(system / f"cpu/cpu{number}/topology/thread_siblings_list")
        cpus.append(Cpu(node_of.get(number, 0), min(siblings, default=number), number))
    return Machine(tuple(cpus), quota)


def _numbers(path: Path) -> list[int]:
    """From a list such as "0-3,8"; empty for a file that is not there."""
    try:
        text = path.read_text().strip()
    except OSError:
        return []
    numbers: list[int] = []
    for entry in filter(None, text.split(",")):
        first, _, last = entry.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def shown(numbers: Sequence[int]) -> str:
    """Numbers as a list such as "0-3,8"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
