"""Which cores a rank is kept on, and when it is left alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from test_topology import made

from edgedit import binding


def decided(mode, rank=0, ranks=2, machine=None, **options):
    return binding.decide(mode, rank, ranks, machine or made(2, 4), **{"env": {}, **options})


def test_auto_gives_each_rank_cores_of_its_own():
    assert [decided("auto", rank).cpus for rank in range(2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert decided("auto", 1).text == "auto: cores 4-7 of 0-7, NUMA node 1"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"ranks": 1}, "one rank"),
        ({"threads": 5}, "5 threads a rank on 4 cores"),
        ({"ranks": 9}, "9 ranks share 8 cores"),
        ({"ranks": 5, "machine": made(1, 4, threads=2)}, "5 ranks share 4 cores"),
        ({"machine": made(1, 64, quota=4.0)}, "time for 4 cores, on any of 64"),
        ({"launcher_bound": True}, "by the launcher: cores 0-7"),
        ({"env": {"OMP_PROC_BIND": "true"}}, "OMP_PROC_BIND places threads"),
        ({"env": {"EDGEDIT_BIND": "none"}}, "left to the system"),
    ],
)
def test_auto_leaves_a_rank_alone(options, why):
    found = decided("auto", **options)
    assert found.cpus == ()
    assert why in found.text


def test_what_is_asked_for_counts_more_than_the_environment():
    assert decided("none", env={"EDGEDIT_BIND": "core"}).cpus == ()
    assert decided("core", env={"EDGEDIT_BIND": "none"}).cpus == (0, 1, 2, 3)
    assert decided("auto", env={"EDGEDIT_BIND": "numa"}, ranks=4).cpus == (0, 1, 2, 3)


def test_core_needs_a_hardware_thread_for_each_rank():
    assert decided("core", 3, 4, made(1, 2, threads=2)).cpus == (3,)
    with pytest.raises(ValueError, match="5 ranks on 2 cores; legal: auto, none, numa"):
        decided("core", 0, 5, made(1, 2, threads=2))
    assert decided("numa", 4, 5, made(1, 2)).cpus == (0, 1)


def test_an_unknown_mode_is_refused_whoever_gives_it():
    with pytest.raises(ValueError, match="bind is 'socket'; legal: auto, none, core, numa"):
        decided("socket")
    with pytest.raises(ValueError, match="bind is 'all'"):
        decided("auto", env={"EDGEDIT_BIND": "all"})


def test_all_threads_of_the_process_are_kept_there_and_count_as_its_cores():
    ranks = len(os.sched_getaffinity(0))
    program = (
        "import os, threading, time\n"
        "from edgedit import binding, host\n"
        "early = threading.Thread(target=time.sleep, args=(1,), daemon=True)\n"
        "early.start()\n"
        f"found = binding.bind('core', 0, {ranks})\n"
        "assert os.sched_getaffinity(0) == os.sched_getaffinity(early.native_id) == set(found.cpus), found\n"
        f"assert host.default_threads({ranks}) == 1\n"
        "assert len(found.cpus) == 1, found\n"
    )
    env = {name: value for name, value in os.environ.items() if name not in binding._PLACED_BY}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
