"""What ranks compare before the first step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_programs import Program

from edgedit.graph.collective import Collective
from edgedit.graph.schedule import first_difference


def block(rank: int = 0, **change: object) -> Program:
    p = Program(rank)
    x = p.exchange("to_heads", p.op("q"), total_count=12)
    x = p.exchange("to_tokens", p.op("attention", x), total_count=8)
    p.exchange("prediction", p.op("y", x), kind="all_gather", send_counts=(4, 4), recv_counts=(2, 2))
    p.collectives[1] = replace(p.collectives[1], **change)
    return p


def test_signature_has_one_line_per_collective_in_order():
    assert block().plan().signature == (
        "all_to_all to_heads axis=ulysses size=2 dtype=f32 count=12",
        "all_to_all to_tokens axis=ulysses size=2 dtype=f32 count=8",
        "all_gather prediction axis=ulysses size=2 dtype=f32 count=4",
    )


def test_ranks_with_uneven_shards_have_one_digest():
    here = block().plan()
    there = block(rank=1, send_counts=(1, 3), recv_counts=(3, 1)).plan()
    assert here.digest == there.digest
    assert here.bytes_sent != there.bytes_sent


@pytest.mark.parametrize(
    "change", [{"dtype": "f16"}, {"kind": "ring_shift"}, {"name": "other"}, {"total_count": 9}]
)
def test_difference_in_one_collective_changes_the_digest_and_is_named(change):
    here, there = block().plan(), block(**change).plan()
    assert here.digest != there.digest
    assert first_difference(here.signature, there.signature) == (1, here.signature[1], there.signature[1])


def test_one_collective_more_is_a_difference_where_the_other_ends():
    lines = block().plan().signature
    assert first_difference(lines[:2], lines) == (2, None, lines[2])
    assert first_difference(lines, lines[:2]) == (2, lines[2], None)


def test_equal_signatures_have_no_difference():
    assert first_difference(block().plan().signature, block(rank=1).plan().signature) is None


def test_signature_of_an_axis_leaves_out_the_other_axes():
    schedule = block(axis="cfg").plan()
    assert schedule.axes == ("ulysses", "cfg")
    assert [line.split()[1] for line in schedule.signature_of("ulysses")] == ["to_heads", "prediction"]
    assert [line.split()[1] for line in schedule.signature_of("cfg")] == ["to_tokens"]


def collective(kind: str, rank: int, send: tuple[int, ...], recv: tuple[int, ...]) -> Collective:
    return Collective(kind, "c", "ulysses", "f16", 0, 1, 2, send, recv, rank)


@pytest.mark.parametrize(
    ("kind", "rank", "send", "recv", "per_peer"),
    [
        ("all_to_all", 1, (5, 7, 0), (1, 7, 2), (10, 0, 0)),
        ("all_gather", 0, (5, 5, 5), (5, 3, 3), (0, 10, 10)),
        ("ring_shift", 2, (4, 0, 0), (0, 3, 0), (8, 0, 0)),
        ("broadcast", 0, (5, 5, 5), (5, 5, 5), (0, 10, 10)),
        ("broadcast", 1, (5, 5, 5), (5, 5, 5), (0, 0, 0)),
        # 8 elements in chunks 3, 3, 2: rank 2 sends the raw chunks 3 and 3, and its own sum of 2 to both
        ("all_reduce", 2, (3, 3, 2), (3, 3, 2), (10, 10, 0)),
    ],
)
def test_bytes_to_each_peer_follow_the_kind(kind, rank, send, recv, per_peer):
    c = collective(kind, rank, send, recv)
    assert c.bytes_per_peer == per_peer
    assert c.bytes_sent == sum(per_peer)


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "broadcast"])
def test_mean_of_bytes_is_the_mean_over_the_ranks(kind):
    shards = (5, 3, 3)
    chunks = {"all_gather": None, "all_reduce": (4, 4, 3), "broadcast": (11, 11, 11)}[kind]
    ranks = [collective(kind, r, chunks or (shards[r],) * 3, chunks or shards) for r in range(3)]
    assert ranks[0].mean_nbytes_sent == pytest.approx(sum(c.bytes_sent for c in ranks) / 3)


def test_mean_of_bytes_of_an_even_all_to_all_is_what_each_rank_sends():
    c = replace(collective("all_to_all", 0, (4, 4, 4), (4, 4, 4)), total_count=36)
    assert c.mean_nbytes_sent == c.bytes_sent
