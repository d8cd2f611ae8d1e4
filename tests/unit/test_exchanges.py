"""Exchanges and their shared slots: blocks against counts, and slots against a simulation of one rank's run."""

from __future__ import annotations

import pytest
from hypothesis import given
from planner_programs import Program
from test_planner_properties import programs

from edgedit.graph.exchanges import Block, exchanges_of, releases, slot_count
from edgedit.graph.schedule import Segment, Start


def blocks_of(
    rank: int, kind: str, send_counts: list[int], recv_counts: list[int], **fields: object
) -> list[list[Block]]:
    p = Program(rank, len(send_counts))
    send = p.op("send", shape=(24,))
    p.exchange("c", send, kind=kind, send_counts=tuple(send_counts), recv_counts=tuple(recv_counts), **fields)
    return [list(exchange.blocks) for exchange in exchanges_of(p.plan(), p.nodes, ())]


def test_blocks_of_an_all_to_all_follow_one_another():
    (blocks,) = blocks_of(1, "all_to_all", [3, 1, 0], [2, 1, 4])
    assert blocks == [Block(0, 12, 0, 8), Block(12, 4, 8, 4), Block(16, 0, 12, 16)]


def test_an_all_gather_sends_everybody_the_same():
    (blocks,) = blocks_of(0, "all_gather", [2, 2], [2, 5])
    assert blocks == [Block(0, 8, 0, 8), Block(0, 8, 8, 20)]


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(0, [Block(0, 24, 0, 24), Block(0, 24, 0, 0)]), (1, [Block(0, 0, 0, 24), Block(0, 0, 0, 0)])],
)
def test_only_the_root_of_a_broadcast_sends(rank, expected):
    assert blocks_of(rank, "broadcast", [6, 6], [6, 6]) == [expected]


def test_an_all_reduce_is_chunks_to_their_owners_and_sums_to_everybody():
    chunks, sums = blocks_of(1, "all_reduce", [3, 2], [3, 2], reduce_op="sum")
    assert chunks == [Block(0, 12, 0, 8), Block(12, 8, 8, 8)]
    assert sums == [Block(12, 8, 0, 12), Block(12, 8, 12, 8)]


def chain(length: int, late_reader: bool = False) -> Program:
    """Exchanges one after another, each read by the next; the last node may read the first one too."""
    p = Program()
    first = x = p.exchange("c0", p.op("x"))
    for number in range(1, length):
        x = p.exchange(f"c{number}", p.op(f"x{number}", x))
    p.op("end", x, *([first] if late_reader else []))
    return p


@pytest.mark.parametrize(
    ("length", "late_reader", "slots"), [(1, False, 2), (6, False, 2), (2, True, 2), (6, True, 6)]
)
def test_slots_are_as_few_as_the_readers_allow(length, late_reader, slots):
    p = chain(length, late_reader)
    assert slot_count(exchanges_of(p.plan(), p.nodes, ())) == slots


@given(programs())
def test_a_slot_is_released_after_its_readers_and_before_it_is_used_again(case):
    p, outputs = case
    schedule = p.plan(*outputs)
    exchanges = exchanges_of(schedule, p.nodes, outputs)
    slots = slot_count(exchanges)
    freed = {
        (collective, at_wait): [] for collective in range(len(p.collectives)) for at_wait in (False, True)
    }
    for collective, at_wait, exchange in releases(schedule, exchanges):
        freed[collective, at_wait].append(exchange)

    shown: dict[int, int] = {}  # node -> exchange whose memory it shows
    occupied: dict[int, int] = {}  # slot -> exchange
    for step in schedule.steps:
        if isinstance(step, Segment):
            for index in schedule.order[step.begin : step.end]:
                for source in p.nodes[index].inputs:
                    if source in shown:
                        assert shown[source] in occupied.values(), "read after its release"
                if p.nodes[index].base in shown:
                    shown[index] = shown[p.nodes[index].base]
            continue
        for exchange in freed[step.collective, not isinstance(step, Start)]:
            del occupied[exchange % slots]
        collective = p.collectives[step.collective]
        if isinstance(step, Start):
            (exchange,) = (i for i, e in enumerate(exchanges) if e.collective == step.collective)
            assert exchange % slots not in occupied, "used before its release"
            occupied[exchange % slots] = shown[collective.start] = exchange
        else:
            shown[collective.wait] = shown[collective.start]
    assert all(shown[index] in occupied.values() for index in outputs if index in shown)
