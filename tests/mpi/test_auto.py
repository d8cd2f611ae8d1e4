"""``edgedit tune`` and ``edgedit generate --auto`` under mpiexec."""

import json

import pytest
from launch import check_ok, mpirun

from edgedit import kernels
from edgedit.tuning.cache import Measurements
from edgedit.tuning.machine import ANY, INTRA, Curve, Link, Machine, Rates

RATES = Rates(Curve.flat(1e9), Curve.flat(1e9), 1e9, 1e-6, 0.0, 1e-4)
GENERATE = ["generate", "-p", "a red apple", "--steps", "1", "--seed", "1", "--threads", "1"]


def machine(link):
    return Machine("m", {"f32": RATES}, {INTRA: {ANY: link}}, 2)


@pytest.fixture
def cache(tmp_path):
    """Where a launch keeps its measurements, as an environment and as an object of this process."""
    return {"XDG_CACHE_HOME": str(tmp_path)}, Measurements(kernels.chosen("auto"), tmp_path / "edgedit")


def test_ranks_measure_their_host_and_the_links_between_them(cache):
    env, kept = cache
    told = json.loads(check_ok(mpirun(2, "edgedit", "tune", "--effort", "quick", "--json", env=env)))
    assert told["path"] == str(kept.path)
    measured = kept.read()[2]
    assert measured.ranks_per_node == 2
    for kind in ("all_to_all", "all_gather", "ring_shift", "all_reduce"):
        link = measured.links[INTRA][kind]
        assert 0 <= link.overlap <= 1
        assert 0 < link.latency_s + 1e6 / link.bytes_per_s < 10
    rates = measured.rates["f32"]
    assert 1e7 < rates.product.at(64) < 1e13


def test_all_ranks_take_the_layout_that_is_predicted_to_be_fastest(cache, tmp_path):
    env, kept = cache
    kept.add(1, machine(Link(0.0, 1e12)))
    kept.add(2, machine(Link(1.0, 1e12)))  # a collective takes a second, so the fewest are best
    flags = ["--negative-prompt", "red", "--true-cfg-scale", "3", "--auto", "-o", str(tmp_path / "a.png")]
    done = mpirun(2, "edgedit", *GENERATE, *flags, "--json", env=env)
    report = json.loads(check_ok(done))
    assert {axis: degree for axis, degree in report["axes"].items() if degree > 1} == {"cfg": 2}
    assert "--auto: --cfg 2, predicted 1." in done.stderr
    assert done.stderr.count("1 rank is faster here") == 1
    assert (tmp_path / "a.png").is_file()


def test_without_measurements_the_choice_is_refused_once(cache):
    done = mpirun(2, "edgedit", *GENERATE, "--auto", env=cache[0])
    assert done.returncode == 2
    assert done.stderr.count("this host was not measured yet; run: edgedit tune") == 1
