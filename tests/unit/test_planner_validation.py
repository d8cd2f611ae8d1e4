"""Programs that cannot be planned are refused with a message that names what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planner_programs import Program

from edgedit.errors import EdgeditError


def program() -> Program:
    p = Program()
    p.op("y", p.exchange("swap", p.op("x")))
    return p


def test_degree_above_one_without_any_collective_is_refused():
    p = Program()
    p.op("x")
    with pytest.raises(EdgeditError, match="for 4 ranks holds no collective"):
        p.plan(0, degree=4)


def test_one_rank_needs_no_collective():
    p = Program()
    p.op("x")
    assert p.plan(0).collectives == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": (9,)}, "node 3 'y'.* reads node 9; there are only 4 nodes"),
        ({"inputs": (3,)}, "reads node 3 'y', which does not come before it"),
        ({"base": -1}, "reads node -1"),
        ({"index": 7}, "has id 7"),
        ({"collective": 0}, "start and wait nodes have one, others have none"),
        ({"op": "wait"}, "start and wait nodes have one"),
        ({"op": "wait", "collective": 5}, "belongs to collective 5; there are 1"),
    ],
)
def test_malformed_node_is_named(change, message):
    p = program()
    p.nodes[3] = replace(p.nodes[3], **change)
    with pytest.raises(EdgeditError, match=message):
        p.plan()


def test_cycle_is_refused():
    p = program()
    p.nodes[0] = replace(p.nodes[0], inputs=(3,))
    with pytest.raises(EdgeditError, match=r"node 0 'x'.* reads node 3 'y'.*cycle"):
        p.plan()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "scatter"}, "unknown kind; known are all_to_all"),
        ({"send": 8}, "its send node 8 does not exist"),
        ({"start": 2, "wait": 1}, "waits at node 1, before it starts at node 2"),
        ({"wait": 3}, "needs node 3 to be its wait and to read nodes"),
        ({"send_counts": (2, 1, 1)}, "3 send counts and 2 receive counts"),
        ({"send_counts": (), "recv_counts": ()}, "0 send counts"),
        ({"rank": 2}, "seen by rank 2 of a group of 2"),
        (
            {"recv_counts": (3, 2)},
            "receives 5 elements, but its receive tensor 'swap.start' of shape .* has 4",
        ),
        ({"send_counts": (3, 2)}, "sends 5 elements, but its send tensor 'x'"),
        ({"send_counts": (5, -1)}, "negative counts"),
    ],
)
def test_malformed_collective_is_named(change, message):
    p = program()
    p.collectives[0] = replace(p.collectives[0], **change)
    with pytest.raises(EdgeditError, match=f"'swap'.*{message}"):
        p.plan()


def test_wait_must_be_a_view_of_its_start():
    p = program()
    p.nodes[2] = replace(p.nodes[2], base=None)
    with pytest.raises(EdgeditError, match="must be a view of its start node 1"):
        p.plan()


def test_two_collectives_of_one_name_are_refused():
    p = program()
    p.exchange("swap", p.op("z"))
    with pytest.raises(EdgeditError, match="two collectives are called 'swap'"):
        p.plan()


def test_groups_of_one_axis_must_agree_in_size():
    p = program()
    p.size = 4
    p.exchange("wide", p.op("z"))
    with pytest.raises(
        EdgeditError, match=r"'wide' has rank 0 of 4 on axis 'ulysses', but 'swap' has rank 0 of 2"
    ):
        p.plan()


def test_group_must_divide_the_ranks_of_the_program():
    with pytest.raises(EdgeditError, match="a group of 2 ranks, which does not divide the 3 ranks"):
        program().plan(degree=3)


def test_output_must_exist():
    with pytest.raises(EdgeditError, match="output 4 is no node"):
        program().plan(4)


def test_tensors_may_be_larger_than_the_counts_of_a_rank_without_tokens():
    p = program()
    p.collectives[0] = replace(p.collectives[0], send_counts=(0, 0), recv_counts=(0, 0))
    assert p.plan().bytes_sent == 0
