"""Clusters in TOML, and the map from ranks to their nodes, against groups that are walked one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedit.config import AXES
from edgedit.graph.collective import Collective
from edgedit.parallel.mesh import WEIGHTS, Mesh
from edgedit.tuning.cluster import read_cluster
from edgedit.tuning.machine import ANY, INTER, INTRA, Curve, Link, Machine, Rates
from edgedit.tuning.topology import Topology

CLUSTER = """
name = "two of four"
nodes = 2
devices_per_node = 4
kernels = "portable"

[device]
memory_gib = 2
memory_gb_per_s = 3
node_us = 4
product_tflop_per_s = {bf16 = 400, f32 = [[16, 5], [1024, 50]]}
attention_tflop_per_s = 250

[link.intra]
latency_us = 3
gb_per_s = 150
overlap = 0.5

[link.inter]
gb_per_s = 50
"""


def written(tmp_path, text):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return path


def test_a_cluster_is_read_in_its_units(tmp_path):
    cluster = read_cluster(written(tmp_path, CLUSTER))
    machine = cluster.machine
    assert (cluster.nodes, cluster.num_devices, cluster.kernels) == (2, 8, "portable")
    assert (machine.name, machine.ranks_per_node, machine.memory_nbytes) == ("two of four", 4, 2 << 30)
    attention = Curve.flat(2.5e14)
    assert machine.rates == {
        "bf16": Rates(Curve.flat(4e14), attention, 3e9, pytest.approx(4e-6)),
        "f32": Rates(Curve(((16, 5e12), (1024, 5e13))), attention, 3e9, pytest.approx(4e-6)),
    }
    assert machine.link(INTRA, "all_to_all") == Link(pytest.approx(3e-6), 1.5e11, 0.5)
    assert machine.link(INTER, "ring_shift") == Link(0.0, 5e10, 1.0, is_shared=True)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nodes = 2", "nodes = 0", "nodes is 0; it must be a number above 0"),
        ("nodes = 2", "nodes = 2.5", "nodes is 2.5; it must be a whole number"),
        ("nodes = 2", "nodes = 'many'", "nodes is 'many'"),
        ("nodes = 2", "nodes = nan", "nodes is nan; it must be a number above 0"),
        ("memory_gib = 2", "memory_gib = inf", "memory_gib is inf; it must be a number above 0"),
        ("gb_per_s = 150", "gb_per_s = nan", "gb_per_s is nan"),
        ("bf16 = 400", "bf16 = inf", "bf16 is inf"),
        ("nodes = 2", "node = 2", "nodes is None"),
        ("nodes = 2", "nodes = ", "is not TOML"),
        ("portable", "fast", "kernels is 'fast'; legal: onednn, avx512, avx2, portable, ggml"),
        ("memory_gib = 2", "", "device: memory_gib is None"),
        ("node_us", "nodes_us", "device: unknown nodes_us"),
        ("{bf16 = 400, f32 = [[16, 5], [1024, 50]]}", "{}", "names no type of weights"),
        ("[[16, 5], [1024, 50]]", "[[16, 5], [4, 50]]", "f32 is [[16, 5], [4, 50]]"),
        ("overlap = 0.5", "overlap = 2", "overlap is 2; it must be from 0 to 1"),
        ("[link.inter]", "[link.outer]", "link: inter is None; it must be a table"),
    ],
)
def test_what_is_wrong_with_a_cluster_is_named(tmp_path, old, new, said):
    assert old in CLUSTER
    with pytest.raises(ValueError) as error:
        read_cluster(written(tmp_path, CLUSTER.replace(old, new)))
    assert said.replace("inter is None; it must be a table", "inter is None") in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="cannot read the cluster"):
        read_cluster(tmp_path / "none.toml")


def topology(per_node: int, *, num_nodes=None, is_filled=False, **degrees: int) -> Topology:
    links = {INTRA: {ANY: Link(1.0, 10.0, 0.0)}, INTER: {ANY: Link(5.0, 8.0, 1.0, is_shared=True)}}
    rates = Rates(Curve.flat(1.0), Curve.flat(1.0), 1.0)
    nodes = Machine("m", {"f32": rates}, links, per_node, num_nodes=num_nodes, is_filled=is_filled)
    return Topology(Mesh(degrees), nodes)


def test_ulysses_stays_inside_nodes_and_ring_crosses_them():
    four = topology(4, ulysses=4, ring=2, cfg=2)
    assert [four.node_of(rank) for rank in range(16)] == [n for n in range(4) for _ in range(4)]
    assert [four.place_of(axis) for axis in ("ulysses", "ring", "cfg")] == [INTRA, INTER, INTER]
    # three Ulysses ranks leave one device of each node idle rather than cross
    three = topology(4, ulysses=3, ring=2)
    assert [three.node_of(rank) for rank in range(6)] == [0, 0, 0, 1, 1, 1]
    assert (three.place_of("ulysses"), three.num_nodes) == (INTRA, 2)
    # six do not fit on a node
    assert topology(4, ulysses=6).place_of("ulysses") == INTER


def test_a_launcher_leaves_no_place_of_a_node_free():
    filled = topology(6, is_filled=True, ulysses=4, ring=3)
    assert [filled.node_of(rank) for rank in range(12)] == [0] * 6 + [1] * 6
    assert filled.place_of("ulysses") == INTER


def test_more_nodes_than_there_are_do_not_fit():
    assert topology(6, num_nodes=2, ulysses=6, ring=2).fits
    assert not topology(6, num_nodes=2, ulysses=4, ring=3).fits  # four on each node
    assert topology(6, num_nodes=2, is_filled=True, ulysses=4, ring=3).fits


@given(
    degrees=st.tuples(*(st.integers(1, most) for most in (2, 4, 3, 2, 3))),
    per_node=st.integers(1, 9),
)
@settings(max_examples=40)
def test_groups_cross_nodes_as_walking_their_ranks_shows(degrees, per_node):
    named = dict(zip(("tp", "ulysses", "ring", "cfg", "dp"), degrees, strict=True))
    found = topology(per_node, **named)
    for axis in AXES:
        groups = found.mesh.groups(axis)
        crosses = any(len({found.node_of(rank) for rank in group}) > 1 for group in groups)
        assert found.place_of(axis) == (INTER if crosses else INTRA)
    assert found.num_nodes == found.node_of(found.mesh.world_size - 1) + 1


def test_ranks_that_keep_shares_of_the_same_weights_exchange_across_nodes():
    # places 0 and 1 on tp, each with a rank of its own beside it and two on the other node
    found = topology(4, tp=2, ulysses=2, dp=2)
    took = found.transfer(collective("all_gather", WEIGHTS, 4, 5))
    assert took.seconds == 2 * 5.0 + (2 * 5 * 4) * 4 / 8
    assert (took.overlap, took.link) == (1.0, INTER)


def collective(kind: str, axis: str, size: int, count: int) -> Collective:
    counts = (count,) * size
    return Collective(
        kind, "c", axis, "f32", -1, -1, -1, counts, counts, 0, "sum" if kind == "all_reduce" else None
    )


def test_transfers_take_latency_for_each_peer_and_bytes_over_the_link():
    inside = topology(4, ulysses=4)
    sent = 3 * 5 * 4  # to each of three peers five f32
    assert inside.transfer(collective("all_to_all", "ulysses", 4, 5)).seconds == 3 * 1.0 + sent / 10
    # sums go out in chunks and come back: two rounds of messages, twice the bytes
    assert inside.transfer(collective("all_reduce", "ulysses", 4, 5)).seconds == 6 * 1.0 + 2 * sent / 10
    assert inside.transfer(collective("all_to_all", "ulysses", 4, 5)).overlap == 0.0


def test_ranks_of_a_node_share_its_link_to_others():
    across = topology(4, ulysses=4, ring=2)
    took = across.transfer(collective("all_gather", "ring", 2, 5))
    assert took.seconds == 5.0 + 5 * 4 * 4 / 8
    assert (took.overlap, took.link) == (1.0, INTER)


def test_of_a_group_on_two_nodes_only_what_leaves_the_node_takes_the_slow_link():
    across = topology(2, ulysses=4)
    slow = 2 * 5.0 + (2 * 5 * 4) * 2 / 8  # two peers on the other node, two ranks send at once
    assert across.transfer(collective("all_to_all", "ulysses", 4, 5)).seconds == slow
    uneven = topology(4, ulysses=6)  # four ranks and two: each of the two has one peer beside it and four away
    slow = 4 * 5.0 + (4 * 5 * 4) * 4 / 8
    assert uneven.transfer(collective("all_to_all", "ulysses", 6, 5)).seconds == slow
