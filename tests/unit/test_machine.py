"""Curves, links, machines as JSON, and where they are kept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedit.tuning import cache
from edgedit.tuning.cache import Measurements
from edgedit.tuning.machine import (
    ANY,
    INTER,
    INTRA,
    Curve,
    Link,
    Machine,
    Rates,
    as_json,
    fitted_link,
    from_json,
)

RATES = Rates(Curve(((16, 1e9), (1024, 4e9))), Curve.flat(2e9), 1e10, 1e-6, 2e-6, 3e-6)
MACHINE = Machine("m", {"f32": RATES}, {INTRA: {ANY: Link(1e-6, 1e9, 0.5)}}, 2, 1 << 30, "graph-cut")


def test_curves_are_linear_in_the_logarithm_and_flat_beyond_their_ends():
    curve = Curve(((10, 1.0), (1000, 3.0)))
    assert [curve.at(size) for size in (1, 10, 100, 1000, 1e6)] == pytest.approx([1, 1, 2, 3, 3])


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((2, 1.0), (1, 1.0)),
        ((1, 1.0), (1, 2.0)),
        ((0, 1.0),),
        ((1, 0.0),),
        ((1, float("nan")),),
        ((1, float("inf")),),
    ],
)
def test_a_curve_that_is_none_is_refused(points):
    with pytest.raises(ValueError, match="ascending sizes and rates above 0"):
        Curve(points)


@given(
    latency=st.floats(1e-7, 1e-3),
    rate=st.floats(1e6, 1e12),
    peers=st.integers(1, 9),
)
@settings(max_examples=30)
def test_a_link_is_found_again_from_its_times(latency, rate, peers):
    sizes = [2.0**power for power in range(10, 27, 4)]
    link = fitted_link([(n, peers * latency + n / rate) for n in sizes], peers)
    for size in sizes:
        expected = peers * latency + size / rate
        assert peers * link.latency_s + size / link.bytes_per_s == pytest.approx(expected, rel=1e-4)


def test_a_link_never_has_a_latency_or_a_rate_below_zero():
    assert fitted_link([(1000.0, 1e-6), (2000.0, 4e-6)], 1).latency_s == 0
    constant = fitted_link([(1000.0, 1e-6), (2000.0, 1e-6)], 1)
    assert constant.latency_s == pytest.approx(1e-6)
    assert constant.bytes_per_s > 1e15


def test_a_link_of_another_kind_serves_where_the_machine_knows_no_other():
    assert MACHINE.link(INTRA, "all_reduce") == Link(1e-6, 1e9, 0.5)
    with pytest.raises(ValueError, match="nothing is known of m's links between nodes"):
        MACHINE.link(INTER, "all_reduce")


def test_machines_survive_json():
    assert from_json(json.loads(json.dumps(as_json(MACHINE)))) == MACHINE


def test_measurements_are_kept_and_added_to(tmp_path):
    kept = Measurements("avx2", tmp_path / "deep")
    assert kept.read() == {}
    kept.add(2, MACHINE)
    other = Machine("m", {"bf16": RATES}, {}, 2)
    kept.add(2, other)
    kept.add(1, MACHINE)
    assert kept.read() == {
        1: MACHINE,
        2: Machine("m", {"f32": RATES, "bf16": RATES}, MACHINE.links, 2),
    }
    assert [path.name for path in kept.path.parent.iterdir()] == [kept.path.name]  # nothing half-written


def test_a_file_that_is_none_of_ours_counts_as_nothing(tmp_path):
    kept = Measurements("avx2", tmp_path)
    for text in ("", "[]", '{"machines": {"x": {}}}', '{"machines": {"1": {"rates": 3}}}'):
        kept.path.write_text(text)
        assert kept.read() == {}


def test_other_kernels_have_measurements_of_their_own(tmp_path):
    assert Measurements("avx2", tmp_path).path != Measurements("ggml", tmp_path).path


def test_what_was_measured_with_other_options_is_kept_apart(tmp_path):
    over_mpi = Measurements("avx2", tmp_path, {"backend": "mpi", "ops": "generic"})
    assert over_mpi.path != Measurements("avx2", tmp_path).path
    with pytest.raises(ValueError, match=r"run: edgedit tune --backend mpi --ops generic$"):
        over_mpi.machine_for(1)


def test_the_cache_is_where_the_user_says(monkeypatch):
    assert str(cache.directory({"XDG_CACHE_HOME": "/x"})) == "/x/edgedit"
    assert cache.directory({}).parts[-2:] == (".cache", "edgedit")


def test_a_number_of_ranks_that_was_not_measured_shares_the_compute_of_the_nearest(tmp_path):
    kept = Measurements("avx2", tmp_path)
    with pytest.raises(ValueError, match="run: edgedit tune"):
        kept.machine_for(1)
    kept.add(1, Machine("m", {"f32": RATES}, {}, 1, 1 << 30))
    assert kept.machine_for(1).rates["f32"] == RATES
    with pytest.raises(
        ValueError, match="links between ranks were not measured yet; run: mpirun -n 4 edgedit tune"
    ):
        kept.machine_for(4)
    kept.add(2, MACHINE)
    assert kept.machine_for(2) == MACHINE
    four = kept.machine_for(4)
    assert four.rates["f32"].product.at(1024) == 2e9
    assert four.rates["f32"].node_s == RATES.node_s
    assert (four.links, four.ranks_per_node, four.memory_nbytes) == (MACHINE.links, 4, 1 << 29)
