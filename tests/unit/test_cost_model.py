"""The time of a pass against what is added up by hand, on small programs."""

from __future__ import annotations

import pytest
from planner_programs import Program

from edgedit.graph.description import GraphDescription
from edgedit.graph.forecast import RankForecast
from edgedit.tuning.cost_model import Seconds, Transfer, node_seconds, pass_seconds, passes_per_step
from edgedit.tuning.machine import Curve, Rates

RATES = Rates(Curve.flat(100.0), Curve.flat(50.0), other=48.0, node_s=0.5, segment_s=0.25)
MATMUL_S = 1.5  # 100 FLOP and the overhead


def forecast(p: Program, *outputs: int) -> RankForecast:
    graph = GraphDescription("Net", tuple(p.nodes), tuple(p.collectives), outputs, 0, {})
    return RankForecast.of(graph, degree=2 if p.collectives else 1)


def overlapping() -> RankForecast:
    """x goes out while a product of x runs; what comes back is added to it."""
    p = Program()
    x = p.op("x")
    received = p.exchange("exchange", x)
    product = p.matmul("product", x)
    return forecast(p, p.op("sum", received, product))


def test_nodes_take_their_overhead_and_their_work():
    p = Program()
    x = p.op("x", shape=(2, 4))
    product = p.op("p", x, op="linear", flops=200, shape=(2, 4))
    attended = p.op("a", x, op="attention", flops=100, shape=(2, 4))
    added = p.op("s", x, attended, shape=(2, 4))
    view = p.op("v", x, op="view", base=x)
    seconds = [node_seconds(p.nodes[index], p.nodes, RATES) for index in (product, attended, added, view)]
    assert seconds == [0.5 + 2.0, 0.5 + 2.0, 0.5 + 3 * 32 / 48, 0.0]


def test_rates_depend_on_rows_and_keys():
    rates = Rates(Curve(((1, 10.0), (100, 30.0))), Curve(((1, 5.0), (25, 10.0))), other=1.0)
    p = Program()
    # rows 10 are half way between 1 and 100 in the logarithm
    product = p.op("p", op="mul_mat", flops=200, shape=(2, 5, 7))
    assert node_seconds(p.nodes[product], p.nodes, rates) == pytest.approx(200 / 20)
    # 25 keys: 4 FLOPs for each and each element of the result
    attended = p.op("a", op="flash_attn_ext", flops=4 * 25 * 8, shape=(2, 4))
    assert node_seconds(p.nodes[attended], p.nodes, rates) == pytest.approx(800 / 10)


@pytest.mark.parametrize(
    ("overlap", "transfer_s", "exposed"),
    [
        (1.0, 1.0, 0.0),  # hidden behind the product, which takes 1.5
        (1.0, 5.0, 3.5),
        (0.0, 1.0, 1.0),  # the rank moves the bytes itself
        (0.5, 5.0, 3.5),  # 2.5 of its own, then 2.5 of which 1.5 are hidden
    ],
)
def test_transfers_hide_behind_compute_as_far_as_they_overlap(overlap, transfer_s, exposed):
    rank = overlapping()
    x, product, added = (4 * 4) / 48 + 0.5, MATMUL_S, 3 * 16 / 48 + 0.5
    took = pass_seconds(rank, RATES, lambda _: Transfer(transfer_s, overlap, "intra"))
    assert took.compute == pytest.approx(x + product + added)
    assert took.exposed == pytest.approx(exposed)


def test_segments_cost_where_the_graph_is_cut():
    rank = overlapping()
    whole, cut = (
        pass_seconds(rank, RATES, lambda _: Transfer(0.0, 1.0, "intra"), cut=cut) for cut in (False, True)
    )
    assert cut.compute - whole.compute == pytest.approx(0.25 * len(rank.schedule.segments))


def test_transfers_over_one_link_follow_each_other_and_those_over_two_do_not():
    p = Program()
    x = p.op("x")
    first, second = p.start("a", x), p.start("b", x)
    rank = forecast(p, p.op("sum", p.wait(first), p.wait(second)))
    same = pass_seconds(rank, RATES, lambda _: Transfer(2.0, 1.0, "intra"))
    apart = pass_seconds(rank, RATES, lambda c: Transfer(2.0, 1.0, c.name))
    assert (same.exposed, apart.exposed) == pytest.approx((4.0, 2.0))


def test_branches_are_shared_by_cfg_ranks():
    assert [passes_per_step(branches, cfg) for branches, cfg in ((1, 1), (2, 1), (2, 2), (3, 2), (1, 4))] == [
        1, 2, 1, 2, 1
    ]  # fmt: skip


def test_seconds_add_up():
    both = Seconds(1.0, 2.0).plus(Seconds(3.0, 4.0)).times(2)
    assert (both, both.total) == (Seconds(8.0, 12.0), 20.0)
