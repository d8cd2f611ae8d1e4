"""Traces in Chrome's format."""

from __future__ import annotations

import json

import pytest
import trace_format
from hypothesis import given
from hypothesis import strategies as st
from trace_format import check_trace

from edgedit.graph.trace import as_trace
from edgedit.parallel.timeline import COMPUTE, REQUEST, TRACKS, WAIT, Slice

FACTS = {"shape": [1, 2], "dtype": "f32"}


def write(path, ranks, about=()):
    path.write_text(json.dumps(as_trace(ranks, dict(about))))
    return path


def test_ranks_are_processes_and_tracks_are_threads(tmp_path):
    ranks = [
        [
            Slice(COMPUTE, "mul_mat", "q", 5.0, 5.5, FACTS),
            Slice(COMPUTE, "segment", "segment 0", 5.0, 6.0, {}),
            Slice(REQUEST, "step", "step 1", 4.0, 7.0, {"step": 1}),
        ],
        [Slice(WAIT, "all_to_all", "qkv wait", 4.5, 4.75, {})],
    ]
    trace = check_trace(write(tmp_path / "t.json", ranks, {"model": "embedded"}), 2)
    assert trace["edgedit"] == {"model": "embedded"}
    assert [e["name"] for e in trace_format.of(trace, 0, "compute")] == ["segment 0", "q"]
    (node,) = trace_format.of(trace, 0, "compute", "mul_mat")
    assert (node["ts"], node["dur"], node["args"]) == (1e6, 5e5, FACTS)
    (waited,) = trace_format.of(trace, 1, "wait")
    assert (waited["ts"], waited["dur"], waited["cat"]) == (5e5, 2.5e5, "all_to_all")


def test_a_rank_without_slices_has_its_names(tmp_path):
    check_trace(write(tmp_path / "t.json", [[Slice(REQUEST, "phase", "x", 0.0, 1.0, {})], []]), 2)


@given(st.lists(st.integers(1, 2000), min_size=3, max_size=40), st.floats(0, 1e6), st.data())
def test_rounding_never_lets_a_slice_stick_out(tmp_path_factory, lengths, origin, data):
    """Neighbours of odd lengths, of tens of nanoseconds and more, inside one that ends with the last of them."""
    at, pieces = origin, []
    for length in lengths:
        end = at + length * 1.23456789e-8
        pieces.append(Slice(COMPUTE, "add", "x", at, end, {}))
        at = end
    pieces.append(Slice(COMPUTE, "segment", "s", origin, at, {}))
    path = tmp_path_factory.mktemp("trace") / "t.json"
    check_trace(write(path, [data.draw(st.permutations(pieces))]), 1)


def test_slices_that_stick_out_are_found():
    events = [{"name": "outer", "ts": 0, "dur": 5}, {"name": "inner", "ts": 3, "dur": 3}]
    with pytest.raises(AssertionError, match="inner sticks out"):
        trace_format.check_nesting(events)


def test_every_track_has_a_place():
    assert tuple(trace_format.THREADS.values()) == TRACKS
