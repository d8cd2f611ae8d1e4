"""The rank table: no processes, no MPI."""

from __future__ import annotations

import itertools

import pytest

from edgedit.config import ParallelConfig
from edgedit.parallel.mesh import Mesh


def test_the_table_of_tp_ulysses_ring_and_cfg() -> None:
    mesh = Mesh({"tp": 2, "ulysses": 2, "ring": 2, "cfg": 2})
    assert mesh.world_size == 16
    assert mesh.groups("ulysses")[:4] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("ring")[:2] == [[0, 4], [1, 5]]
    assert mesh.groups("cfg")[:2] == [[0, 8], [1, 9]]
    assert mesh.groups("tp")[:2] == [[0, 1], [2, 3]]
    assert mesh.groups("world") == [list(range(16))]
    assert mesh.groups("dp") == [[rank] for rank in range(16)]


def test_coordinates_follow_the_formula() -> None:
    tp, ulysses, kv, cfg, dp = 2, 3, 2, 2, 2
    mesh = Mesh({"tp": tp, "ulysses": ulysses, "kv_gather": kv, "cfg": cfg, "dp": dp})
    for t, u, r, c, d in itertools.product(*map(range, (tp, ulysses, kv, cfg, dp))):
        rank = t + tp * (u + ulysses * (r + kv * (c + cfg * d)))
        place = {"tp": t, "ulysses": u, "ring": 0, "kv_gather": r, "cfg": c, "dp": d}
        assert mesh.coords(rank) == place
        assert mesh.rank_at(place) == rank


@pytest.mark.parametrize("degree", [1, 2, 3, 5, 6, 7])
@pytest.mark.parametrize("axis", ["tp", "ulysses", "ring", "kv_gather", "cfg", "dp"])
def test_groups_of_an_axis_cover_the_world_once(axis: str, degree: int) -> None:
    mesh = Mesh({"cfg": 2, "tp": 3, axis: degree})
    groups = mesh.groups(axis)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
    assert {len(group) for group in groups} == {degree}
    for group in groups:
        assert [mesh.coords(rank)[axis] for rank in group] == list(range(degree))
        for rank in group:
            assert mesh.group_of(axis, rank) == group


def test_a_config_gives_its_mesh() -> None:
    mesh = Mesh(ParallelConfig(cfg_degree=2, ulysses_degree=3, world_size=6))
    assert mesh.groups("ulysses") == [[0, 1, 2], [3, 4, 5]]
    assert mesh.groups("cfg") == [[0, 3], [1, 4], [2, 5]]


def test_the_printed_table_has_a_line_per_rank_and_the_axes_in_use() -> None:
    lines = Mesh({"ulysses": 2, "cfg": 2}).table().splitlines()
    assert [line.split() for line in lines] == [
        ["rank", "ulysses", "cfg"], ["0", "0", "0"], ["1", "1", "0"], ["2", "0", "1"], ["3", "1", "1"],
    ]  # fmt: skip


def test_nonsense_is_refused() -> None:
    for degrees in ({"sp": 2}, {"tp": 0}, {"ring": 2, "kv_gather": 2}):
        with pytest.raises(ValueError):
            Mesh(degrees)
    with pytest.raises(ValueError, match="outside the world of 2"):
        Mesh({"cfg": 2}).coords(2)
    with pytest.raises(ValueError, match="unknown axis 'sp'"):
        Mesh({}).groups("sp")
