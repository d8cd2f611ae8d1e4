"""Circles of waits are found, once they are certain, and nothing else is."""

from __future__ import annotations

from edgedit.parallel.deadlock import DeadlockDetector, Report
from edgedit.parallel.mesh import Mesh

MESH = Mesh({"ulysses": 2, "cfg": 2})  # ulysses [0, 1], [2, 3]; cfg [0, 2], [1, 3]


def waits(number: int, group: str, sequence: int, **calls_made: int) -> Report:
    return Report(number, group, sequence, f"call #{sequence} on {group}", {group: sequence, **calls_made})


def computes(number: int, **calls_made: int) -> Report:
    return Report(number, "", 0, "", calls_made)


def look_at(*snapshots: dict[int, Report], rank: int = 0) -> list[str | None]:
    detector = DeadlockDetector(rank, MESH.group_of)
    return [detector.look(snapshot) for snapshot in snapshots]


def circle(number: int) -> dict[int, Report]:
    """0 needs 1 on ulysses, 1 needs 3 on cfg, 3 needs 2 on ulysses, 2 needs 0 on cfg."""
    return {
        0: waits(number, "ulysses", 1), 1: waits(number, "cfg", 1),
        2: waits(number, "cfg", 1), 3: waits(number, "ulysses", 1),
    }  # fmt: skip


def test_a_lasting_circle_is_reported_with_every_wait() -> None:
    first, second, third = look_at(circle(1), circle(2), circle(3))
    assert (first, second) == (None, None)
    assert third is not None
    for rank, group in enumerate(("ulysses", "cfg", "cfg", "ulysses")):
        assert f"rank {rank} waits in call #1 on {group}" in third


def test_ranks_that_wait_in_unlike_calls_of_one_number_are_reported() -> None:
    reports = [
        {0: waits(number, "ulysses", 3), 1: waits(number, "ulysses", 3)._replace(call="one too many")}
        for number in (1, 2, 3)
    ]
    *_, third = look_at(*reports)
    assert third is not None
    assert "rank 0 waits in call #3 on ulysses, rank 1 waits in one too many" in third


def test_a_circle_must_last_on_every_rank() -> None:
    late = {**circle(3), 2: circle(2)[2]}
    assert look_at(circle(1), circle(2), late) == [None, None, None]


def test_a_circle_that_has_moved_on_starts_anew() -> None:
    moved = {rank: report._replace(sequence=2) for rank, report in circle(3).items()}
    moved = {rank: report._replace(calls_made={report.group: 2}) for rank, report in moved.items()}
    assert look_at(circle(1), circle(2), moved) == [None, None, None]


def test_a_wait_for_a_rank_that_computes_is_patience() -> None:
    reports = [{**circle(number), 2: computes(number)} for number in (1, 2, 3, 4)]
    assert look_at(*reports) == [None] * 4


def test_a_rank_that_has_begun_the_call_is_not_needed() -> None:
    reports = [{**circle(number), 1: waits(number, "cfg", 1, ulysses=1)} for number in (1, 2, 3, 4)]
    assert look_at(*reports) == [None] * 4


def test_a_rank_that_waits_for_the_circle_from_outside_reports_it_too() -> None:
    mesh = Mesh({"ulysses": 2, "dp": 2})  # ulysses [0, 1], [2, 3]; dp [0, 2], [1, 3]
    detector = DeadlockDetector(0, mesh.group_of)

    def snapshot(number: int) -> dict[int, Report]:
        return {
            0: waits(number, "dp", 1), 1: computes(number),
            2: waits(number, "ulysses", 1), 3: waits(number, "world", 1),
        }  # fmt: skip

    found = [detector.look(snapshot(number)) for number in (1, 2, 3)]
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert "rank 2 waits in call #1 on ulysses" in found[2]
