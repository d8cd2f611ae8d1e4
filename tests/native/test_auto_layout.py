"""benchmarks/auto_layout.py: its cases, what it says of a choice, and its table. The timing itself runs by hand."""

from __future__ import annotations

import pytest
from auto_layout import predictions, row_of
from auto_layout_cases import CASES, QUICK, case_of
from table import tables

from edgedit.tuning.cache import Measurements
from edgedit.tuning.machine import ANY, INTRA, Curve, Link, Machine, Rates
from edgedit.tuning.search import by_preference

RATES = Rates(Curve.flat(1e10), Curve.flat(1e10), 1e10, 1e-6, 0.0, 1e-4)


def test_there_are_ten_cases_of_two_families_and_several_numbers_of_ranks():
    assert len({case.name for case in CASES}) == len(CASES) == 10
    assert {case.ranks for case in CASES} == {2, 3, 4}
    assert len({case.network for case in CASES}) == 2
    assert case_of(QUICK[0].name) is QUICK[0]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_every_layout_of_a_case_is_predicted_and_the_choice_is_the_first(tmp_path, case):
    measured = Measurements("portable", tmp_path)
    measured.add(2, Machine("m", {"f32": RATES}, {INTRA: {ANY: Link(1e-6, 1e9)}}, 2))
    found = predictions(case, measured)
    assert {layout.world_size for layout in found} == {1, case.ranks}
    assert found == by_preference(found)
    rounds = {layout.flags: [1.0 + index] * 3 for index, layout in enumerate(found)}
    row = row_of(case, found, rounds)
    assert row["is_fastest"] and row["is_near"] and row["chosen"] == row["fastest"] == found[0].flags
    assert not row["beaten_by"]
    first, second = found[0].flags, found[1].flags
    slower = row_of(case, found, {**rounds, first: [2.05, 2.05, 2.05]})
    assert (slower["is_fastest"], slower["is_near"], slower["fastest"]) == (False, True, second)
    assert slower["beaten_by"] == [second]
    assert not row_of(case, found, {**rounds, first: [2.05, 2.05, 1.95]})["beaten_by"]
    assert not row_of(case, found, {**rounds, first: [2.2, 2.2, 2.2]})["is_near"]


def test_the_table_tells_choices_and_times():
    row = {
        "case": "flux",
        "ranks": 2,
        "chosen": "--cfg 2",
        "fastest": "one rank",
        "predicted_ms": {"--cfg 2": 10.04, "one rank": 11.0},
        "measured_ms": {"--cfg 2": 12.0, "one rank": 11.5},
    }
    text = tables(
        {
            "auto-layout": {
                "near": 1.03,
                "cases": 1,
                "chosen_is_fastest": 0,
                "chosen_is_unbeaten": 1,
                "chosen_is_near": 0,
                "rows": [row],
            }
        }
    )
    assert "of 1 cases: the lowest median in 0; no layout faster in every round in 1; within 3%" in text
    assert "| flux | 2 | `--cfg 2` | 10.0 | 12.0 | one rank | 11.5 | 2 |" in text
