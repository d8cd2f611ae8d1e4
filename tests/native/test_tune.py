"""What ``edgedit tune`` makes of timed nodes, and the command on one rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedit.cli import main
from edgedit.parallel.context import ParallelContext
from edgedit.tuning.effort import QUICK
from edgedit.tuning.machine import INTER, INTRA, Curve, Rates, from_json
from edgedit.tuning.measure import TimedNode, TimedSize, median_rates, rates_of
from edgedit.tuning.measure_links import KINDS, measure_links
from edgedit.tuning.tune import measure_machine

CALL_S = 1e-5


def timed(op, shape, flops, nbytes, work_s):
    return TimedNode(op, shape, flops, nbytes, CALL_S + work_s)


def test_rates_come_from_the_nodes_of_every_size():
    small = [
        timed("linear", (1, 8, 4), 1000, 0, 1e-5),
        timed("attention", (1, 8, 4), 4 * 16 * 32, 0, 2e-5),
        timed("modulate", (1, 8, 4), 32, 500, 5e-6),
        timed("rope_table", (1, 1), 1, 0, 0.0),
    ]
    large = [timed("linear", (1, 64, 4), 4000, 0, 2e-5), timed("modulate", (1, 64, 4), 0, 500, 5e-6)]
    work_s = (
        sum(node.seconds - CALL_S for node in small) + 0.1 * CALL_S
    )  # of what only calls, a tenth is work
    sizes = [
        TimedSize(small, compute_s=work_s + 4 * 3e-6, wall_s=work_s + 4 * 3e-6 + 1e-4),
        # in a graph, the nodes of this size take half as long as one by one
        TimedSize(large, compute_s=(2e-5 + 5e-6) / 2 + 2 * 3e-6, wall_s=1.0),
    ]
    rates = rates_of(sizes)
    assert rates.product.points == ((8, pytest.approx(1e8)), (64, pytest.approx(4e8)))
    assert rates.attention.points == ((16, pytest.approx(4 * 16 * 32 / 2e-5)),)
    assert rates.other == pytest.approx(1000 / (5e-6 + 5e-6 / 2 + 0.1 * CALL_S))
    assert (rates.node_s, rates.segment_s) == pytest.approx((3e-6, CALL_S))
    assert rates.pass_s == pytest.approx(1e-4)


def test_ranks_agree_on_the_median():
    of_ranks = [Rates(Curve(((8, x), (9, 10 - x))), Curve.flat(x), x, node_s=x) for x in (1.0, 2.0, 6.0)]
    assert median_rates(of_ranks) == Rates(Curve(((8, 2.0), (9, 8.0))), Curve.flat(2.0), 2.0, node_s=2.0)


def test_tune_keeps_what_it_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["tune", "--effort", "quick", "--dtype", "f32", "q8_0", "--threads", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    measured = from_json(told["machine"])
    assert set(measured.rates) == {"f32", "q8_0"}
    assert (measured.links, measured.ranks_per_node) == ({}, 1)
    assert measured.memory_nbytes > 2**20
    for rates in measured.rates.values():
        assert 1e7 < rates.product.at(16) < 1e13
        assert rates.node_s >= 0 and rates.pass_s > 0
    assert json.loads(Path(told["path"]).read_text())["of"] == told["of"]
    assert main(["tune", "--effort", "quick", "--threads", "1"]) == 0
    text = capsys.readouterr().out
    assert "GFLOP/s" in text and "mpirun -n 2 edgedit tune" in text and "kept in" in text


def test_links_inside_a_node_and_between_nodes_are_told_apart():
    def run(context):
        return measure_machine(context, [], 1, QUICK, lambda what: None)

    machines = ParallelContext.local(4, run, ulysses_degree=2, ring_degree=2)
    assert machines == machines[:1] * 4
    assert set(machines[0].links) == {INTRA, INTER}


def test_hosts_with_unlike_numbers_of_ranks_are_refused(monkeypatch, capsys):
    launch = {"RANK": "0", "SIZE": "3", "LOCAL_RANK": "0", "LOCAL_SIZE": "2"}
    for name, value in launch.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert main(["tune"]) == 2
    assert "2 of 3 ranks are on this host; tune needs equally many on each" in capsys.readouterr().err


def test_every_kind_of_collective_is_timed():
    links = ParallelContext.local(3, lambda context: measure_links(context, "ulysses", 1, QUICK))
    assert set(links[0]) == set(KINDS)
    for link in links[0].values():
        assert link.latency_s >= 0 and link.bytes_per_s > 0 and 0 <= link.overlap <= 1
