"""How ranks share the cores of made-up machines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedit import topology
from edgedit.topology import Cpu, Machine


def made(nodes: int, cores: int, threads: int = 1, quota: float | None = None) -> Machine:
    """`nodes` NUMA nodes of `cores` cores; second threads are numbered behind all first ones, as Linux likes it."""
    total = nodes * cores
    return Machine(
        tuple(
            Cpu(core // cores, core, thread * total + core)
            for core in range(total)
            for thread in range(threads)
        ),
        quota,
    )


def shares(machine: Machine, ranks: int) -> list[list[int]]:
    return [[cpu.number for cpu in topology.share(machine, rank, ranks)] for rank in range(ranks)]


@pytest.mark.parametrize(
    ("machine", "ranks", "expected"),
    [
        (made(1, 4), 4, [[0], [1], [2], [3]]),
        (made(1, 4), 2, [[0, 1], [2, 3]]),
        (made(1, 8), 6, [[0], [1], [2], [3], [4], [5]]),  # as many cores for each, two rest
        (made(1, 8), 3, [[0, 1], [2, 3], [4, 5]]),
        (made(2, 4), 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (made(2, 4), 6, [[0], [1], [2], [4], [5], [6]]),  # three on each node
        (made(2, 8), 6, [[0, 1], [2, 3], [4, 5], [8, 9], [10, 11], [12, 13]]),
        (made(2, 4), 1, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (made(4, 2), 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),  # two whole nodes each
        (
            made(2, 8),
            3,
            [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14]],
        ),  # staying in a node would cost one
        (made(1, 4, threads=2), 2, [[0, 1], [2, 3]]),  # one thread of each core
        (made(1, 4, threads=2), 4, [[0], [1], [2], [3]]),
        (made(1, 2, threads=2), 3, [[0], [1], [2]]),  # second threads come last
        (made(1, 8, quota=4.0), 2, [[0, 1], [2, 3]]),
        (made(1, 8, quota=2.0), 4, [[0], [1], [2], [3]]),  # a quota limits time, not places
    ],
)
def test_shares_are_runs_of_neighbours(machine: Machine, ranks: int, expected: list[list[int]]) -> None:
    assert shares(machine, ranks) == expected


def test_more_ranks_than_hardware_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="9 ranks on 8 hardware threads"):
        topology.share(made(1, 4, threads=2), 0, 9)


@given(nodes=st.lists(st.integers(1, 9), min_size=1, max_size=5), threads=st.integers(1, 2), data=st.data())
def test_every_rank_gets_as_much_and_nobody_shares(
    nodes: list[int], threads: int, data: st.DataObject
) -> None:
    node_of = [node for node, cores in enumerate(nodes) for _ in range(cores)]
    cores = len(node_of)
    machine = Machine(
        tuple(Cpu(node_of[core], core, t * cores + core) for core in range(cores) for t in range(threads))
    )
    ranks = data.draw(st.integers(1, cores * threads))
    every = shares(machine, ranks)
    taken = [number for share in every for number in share]
    assert len(taken) == len(set(taken))
    assert {len(share) for share in every} == {max(1, cores // ranks)}
    if ranks <= cores:
        assert max(taken) < cores, "a second thread although cores were left"
    each = max(1, cores // ranks)
    if sum(count // each for count in nodes) >= ranks and ranks <= cores:
        assert all(len({node_of[number] for number in share}) == 1 for share in every)


@pytest.mark.parametrize(
    ("machine", "rank", "ranks", "expected"),
    [
        (made(2, 2, threads=2), 0, 2, [0, 4, 1, 5]),
        (made(2, 2, threads=2), 1, 2, [2, 6, 3, 7]),
        (made(2, 2), 0, 1, [0, 1, 2, 3]),
        (made(2, 2), 5, 8, [2, 3]),  # more ranks than cores: they take turns within a node
    ],
)
def test_the_node_of_a_rank_is_all_of_it(
    machine: Machine, rank: int, ranks: int, expected: list[int]
) -> None:
    assert [cpu.number for cpu in topology.node_of_rank(machine, rank, ranks)] == expected


def test_linux_describes_nodes_and_siblings(tmp_path) -> None:
    for node, numbers in ((0, "0-1,4-5"), (1, "2-3,6-7")):
        (tmp_path / f"node/node{node}").mkdir(parents=True)
        (tmp_path / f"node/node{node}/cpulist").write_text(numbers + "\n")
    for number in range(8):
        (tmp_path / f"cpu/cpu{number}/topology").mkdir(parents=True)
        listed = f"{number % 4},{number % 4 + 4}\n"
        (tmp_path / f"cpu/cpu{number}/topology/thread_siblings_list").write_text(listed)
    machine = topology.read(range(8), None, tmp_path)
    assert set(machine.cpus) == {Cpu(n % 4 // 2, n % 4, n) for n in range(8)}
    assert [len(core) for core in machine.cores] == [2, 2, 2, 2]
    assert str(machine) == "2 NUMA nodes, 4 cores, 8 threads"
    assert topology.read([2, 6, 7], 1.5, tmp_path).num_cores == 1


def test_a_system_that_says_nothing_has_one_node_of_plain_cores(tmp_path) -> None:
    assert topology.read([3, 5], None, tmp_path).cpus == (Cpu(0, 3, 3), Cpu(0, 5, 5))


def test_numbers_are_shown_as_runs() -> None:
    assert topology.shown([8, 0, 1, 2, 5, 6]) == "0-2,5-6,8"
    assert topology.shown([]) == ""
