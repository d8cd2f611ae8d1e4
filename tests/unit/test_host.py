"""Threads per rank: shares of the cores that a rank may really use."""

import os

import pytest

from edgedit import cgroup, host, topology


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Sets the affinity of this process and of its launcher, the cgroup's quota, and which threads share a core."""

    def make(own, launcher=None, quota="max 100000", siblings=()):
        affinity = {0: set(range(own)), os.getppid(): set(range(launcher or own))}
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: affinity[pid], raising=False)
        group = tmp_path / "slice" / "job"
        group.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup").write_text("0::/slice/job\n")
        for folder, text in ((group, "max 100000"), (group.parent, quota)):
            (folder / "cpu.max").write_text(text)
        for pair in siblings:
            for number in pair:
                folder = tmp_path / f"system/cpu/cpu{number}/topology"
                folder.mkdir(parents=True)
                (folder / "thread_siblings_list").write_text(",".join(map(str, pair)))
        monkeypatch.setattr(cgroup, "_ROOT", tmp_path)
        monkeypatch.setattr(cgroup, "_MEMBERSHIP", tmp_path / "cgroup")
        monkeypatch.setattr(topology, "_SYSTEM", tmp_path / "system")

    return make


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (8, 8, 1), (2, 4, 1)]
)
def test_ranks_share_the_cores_of_their_host(machine, cores, ranks, threads):
    machine(cores)
    assert host.default_threads(ranks) == threads


def test_a_rank_that_its_launcher_bound_keeps_all_its_cores(machine):
    machine(own=4, launcher=16)
    assert host.default_threads(4) == 4


def test_a_cpu_set_around_the_launcher_is_shared(machine):
    machine(own=4, launcher=4)
    assert host.default_threads(4) == 1


def test_ranks_that_were_bound_to_the_same_cores_share_them(machine):
    machine(own=8, launcher=16)
    assert host.default_threads(8) == 2


def test_a_core_with_two_threads_counts_once(machine):
    machine(8, siblings=[(0, 4), (1, 5), (2, 6), (3, 7)])
    assert host.default_threads(1) == 4
    assert host.default_threads(2) == 2


@pytest.mark.parametrize(("quota", "cores"), [("300000 100000", 3), ("50000 100000", 1), ("max 100000", 8)])
def test_a_cgroup_quota_caps_the_cores(machine, quota, cores):
    machine(8, quota=quota)
    assert host.usable_cores() == cores


def test_a_wait_policy_that_the_user_set_is_kept():
    env = {"OMP_WAIT_POLICY": "active"}
    host.rest_waiting_threads(env)
    assert env == {"OMP_WAIT_POLICY": "active"}
    host.rest_waiting_threads(env := {})
    assert env == {"OMP_WAIT_POLICY": "passive"}
