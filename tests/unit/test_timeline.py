"""Timelines: phases and steps as they are noted, and those of several ranks by one clock."""

from __future__ import annotations

import json

import pytest

from edgedit.parallel import timeline
from edgedit.parallel.gathering import offsets_of, shifted
from edgedit.parallel.timeline import COMPUTE, EXCHANGE, REQUEST, WAIT, Timeline, packed, unpacked


@pytest.fixture
def noted(monkeypatch):
    """A timeline whose clock goes on by a second with every look."""
    seconds = iter(range(100))
    monkeypatch.setattr(timeline, "clock", lambda: float(next(seconds)))
    return Timeline()


def spans(kept):
    return {(s.category, s.name): (s.begin_s, s.end_s) for s in kept.slices}


def test_steps_lie_inside_their_phase(noted):
    for step, phase in ((None, "encoding"), (1, "denoising"), (2, "denoising"), (None, "decoding")):
        noted.note(step, phase)
    noted.finish()
    assert {s.track for s in noted.slices} == {REQUEST}
    assert spans(noted) == {
        ("phase", "encoding"): (0, 1),
        ("phase", "denoising"): (1, 3),
        ("step", "step 1"): (1, 2),
        ("step", "step 2"): (2, 3),
        ("phase", "decoding"): (3, 4),
    }


def test_a_finished_timeline_ends_what_is_under_way_once(noted):
    noted.note(1, "denoising")
    noted.finish()
    noted.finish()
    assert spans(noted) == {("step", "step 1"): (0, 1), ("phase", "denoising"): (0, 1)}


def test_an_exchange_waits_first_and_moves_then():
    kept = Timeline()
    kept.add_exchange("all_to_all", "qkv", "wait", "ulysses", "f32", 64, 10.0, 12.0, 1.5)
    kept.add_exchange("all_to_all", "qkv", "start", "ulysses", "f32", 64, 20.0, 21.0, 0.0)
    kept.add_exchange(
        "all_to_all", "qkv", "wait", "ulysses", "f32", 64, 30.0, 31.0, 1.1
    )  # clocks differ a little
    found = [(s.track, s.name, s.begin_s, s.end_s) for s in kept.slices]
    assert found == [
        (WAIT, "qkv wait", 10.0, 11.5),
        (EXCHANGE, "qkv wait", 11.5, 12.0),
        (EXCHANGE, "qkv start", 20.0, 21.0),
        (WAIT, "qkv wait", 30.0, 31.0),
        (EXCHANGE, "qkv wait", 31.0, 31.0),
    ]
    assert kept.slices[0].args["bytes_sent"] == 64


def test_packed_slices_come_back_as_they_were_with_facts_once():
    kept, facts = Timeline(), {"shape": [2, 3]}
    for begin in range(5):
        kept.add(COMPUTE, "mul_mat", "x", begin + 0.1, begin + 0.7, facts)
    kept.add(REQUEST, "phase", "denoising", 0.1, 4.7, {})
    data = json.loads(json.dumps(packed(kept.slices)))
    assert len(data["args"]) == 2
    assert list(unpacked(data)) == kept.slices


def test_clocks_of_other_hosts_are_compared_by_the_median_barrier():
    ends = [[0.0, 1.0, 2.0], [0.0, 1.1, 2.0], [100.0, 101.5, 101.8]]
    assert offsets_of(["a", "a", "b"], ends) == [0.0, 0.0, 100.0]
    assert offsets_of(["a", "b", "b"], [[0.0], [7.0], [9.0]]) == [0.0, 7.0, 7.0]  # one clock a host


def test_shifted_slices_keep_their_lengths():
    kept = Timeline()
    kept.add(COMPUTE, "mul_mat", "x", 100.5, 101.0, {})
    (moved,) = shifted(kept.slices, 100.0)
    assert (moved.begin_s, moved.end_s) == (0.5, 1.0)
