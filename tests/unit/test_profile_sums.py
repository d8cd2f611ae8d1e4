"""Sums over the steps of a profiled run, and the tables made of them."""

from __future__ import annotations

import pytest

from edgedit.graph.profile_page import as_text
from edgedit.graph.profile_sums import as_json, summed
from edgedit.parallel.timeline import COMPUTE, REQUEST, Timeline


def two_steps():
    """Encoding that is no step, then two steps of 10 s: 6 s of products, 1 s of packing, an exchange of 0.5 + 2 s."""
    kept = Timeline()
    node = {"flops": 12_000_000_000, "nbytes": 1000}
    kept.add(REQUEST, "phase", "encoding", 0.0, 5.0, {})
    kept.add(COMPUTE, "mul_mat", "encoder", 1.0, 4.0, node)
    kept.add(REQUEST, "phase", "denoising", 5.0, 26.0, {})
    for step in (0, 1):
        begin = 5.0 + 10.5 * step
        kept.add(REQUEST, "step", f"step {step + 1}", begin, begin + 10.0, {})
        kept.add(
            COMPUTE,
            "segment",
            "segment 0",
            begin + 0.5,
            begin + 6.5,
            {"graph": "F", "segment": 0, "flops": 24 * 10**9},
        )
        kept.add(COMPUTE, "mul_mat", "q", begin + 0.5, begin + 3.5, node)
        kept.add(COMPUTE, "mul_mat", "k", begin + 3.5, begin + 6.5, node)
        of = ("ulysses", "f32", 4096)
        kept.add_exchange("pack", "blocks.0.qkv", "pack", *of, begin + 6.5, begin + 7.5, 0.0)
        kept.add_exchange("all_to_all", "blocks.0.qkv", "start", *of, begin + 7.5, begin + 7.75, 0.0)
        kept.add_exchange("all_to_all", "blocks.0.qkv", "wait", *of, begin + 7.75, begin + 9.0, 1.0)
        kept.add_exchange("all_to_all", "blocks.1.qkv", "start", *of, begin + 9.0, begin + 9.5, 0.25)
    return summed(kept.slices)


def test_the_parts_of_the_steps_add_up():
    profile = two_steps()
    assert profile.steps == 2
    assert profile.step_s == 20.0
    assert profile.compute_s == 12.0
    assert profile.exchange_s == 2 * (1.0 + 0.25 + 0.25 + 0.25)
    assert profile.wait_s == 2 * (1.0 + 0.25)
    assert profile.overhead_s == pytest.approx(20.0 - 12.0 - 3.5 - 2.5)
    assert profile.phases == {"encoding": 5.0, "denoising": 21.0}


def test_kinds_segments_and_exchanges_are_told_apart():
    profile = two_steps()
    assert list(profile.kinds) == ["mul_mat", "pack", "all_to_all"]  # slowest first
    product = profile.kinds["mul_mat"]
    assert (product.calls, product.seconds, product.gflop_per_s) == (4, 12.0, 4.0)  # none of the encoder's
    assert (profile.kinds["all_to_all"].calls, profile.kinds["pack"].calls) == (4, 2)
    assert profile.kinds["pack"].gflop_per_s is None
    assert profile.segments["F, 0"].seconds == 12.0
    first, second = profile.exchanges.values()
    assert (first.calls, first.seconds, first.wait_s, first.nbytes) == (2, 3.0, 2.0, 2 * 4096)
    assert (second.calls, second.seconds, second.wait_s, second.nbytes) == (2, 0.5, 0.5, 2 * 4096)


def test_plain_values_hold_everything():
    values = as_json(two_steps())
    assert values["overhead_s"] == pytest.approx(2.0)
    assert values["kinds"]["mul_mat"]["flops"] == 48_000_000_000
    assert values["exchanges"]["blocks.1.qkv"]["wait_s"] == 0.5


def test_tables_are_of_one_step_and_shares_add_up():
    text = as_text([two_steps(), two_steps()])
    lines = text.splitlines()
    assert lines[0] == "Rank 0, one of 2 steps:"
    kinds = lines[1 : lines.index("")]
    assert kinds[1].split() == ["mul_mat", "2", "6000.00", "60.0%", "4.0"]
    shares = [float(line.split("%")[0].split()[-1]) for line in kinds[1:]]
    assert sum(shares[:-1]) == pytest.approx(shares[-1]) == pytest.approx(100)
    assert len({len(line.split("%")[0]) for line in kinds[1:]}) == 1, "columns stand below each other"
    (exchange,) = (line for line in lines if line.startswith("blocks.*.qkv"))
    assert exchange.split() == ["blocks.*.qkv", "2", "1750.00", "1250.00", "8.0", "KiB"]
    assert [line.split() for line in lines[-4:-2]] == [
        [rank, "10000.00", "6000.00", "1750.00", "1250.00", "1000.00"] for rank in "01"
    ]
    assert lines[-1] == "encoding 5000 ms, denoising 21000 ms"


def test_a_run_without_steps_has_nothing_to_divide_by():
    kept = Timeline()
    kept.add(REQUEST, "phase", "encoding", 0.0, 1.0, {})
    assert "encoding 1000 ms" in as_text([summed(kept.slices)])
