"""Cuts of a side into overlapping runs, and the statistics of what their parts hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from edgedit.sequence.tiles import Cut, Statistics, smallest_tile

CUTS = st.integers(0, 5).flatmap(
    lambda margin: st.builds(
        Cut, st.integers(1, 200), st.integers(smallest_tile(margin), 64), st.just(margin)
    )
)


def placed(cut, values, factor):
    """Values of every run, where they stand: [runs, factor * length]."""
    rows = np.zeros((len(cut.starts), factor * cut.length), np.float32)
    for run, begin in enumerate(cut.starts):
        rows[run, factor * begin : factor * (begin + cut.extent)] = values(run, factor)
    return rows


@hypothesis_settings(max_examples=60)
@given(CUTS, st.sampled_from([1, 2]))
def test_runs_cover_a_side_and_what_a_cut_has_changed_counts_nothing(cut, factor):
    weights, owned = placed(cut, cut.weights, factor), placed(cut, cut.owned, factor)
    np.testing.assert_array_equal(owned.sum(axis=0), 1)
    assert (weights.sum(axis=0) > 0).all()
    for run, begin in enumerate(cut.starts):
        reliable = np.ones(cut.length, bool)
        if begin > 0:
            reliable[: begin + cut.margin] = False
        if begin + cut.extent < cut.length:
            reliable[begin + cut.extent - cut.margin :] = False
        reliable = reliable.repeat(factor)
        assert not weights[run][~reliable].any()
        assert not owned[run][~reliable].any()
    assert max(np.diff(cut.starts), default=0) <= cut.extent


def test_neighbours_pass_into_each_other_evenly():
    cut = Cut(52, 32, 2)
    assert (cut.starts, cut.extent, cut.blend) == ((0, 23), 29, 2)
    weights = placed(cut, cut.weights, 2)
    np.testing.assert_allclose(weights.sum(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(weights[0, 49:55], [1, 7 / 8, 5 / 8, 3 / 8, 1 / 8, 0], rtol=1e-6)


def test_a_side_shorter_than_a_run_is_one():
    cut = Cut(5, 16, 3)
    assert (cut.starts, cut.extent) == ((0,), 5)
    np.testing.assert_array_equal(cut.weights(0, 2), np.ones(10))


def test_runs_too_short_to_overlap_are_refused():
    with pytest.raises(ValueError, match="tiles of 11 positions are too small; at least 12"):
        Cut(100, 11, 3)


def test_statistics_of_parts_are_those_of_the_whole():
    values = np.random.default_rng(0).standard_normal((2, 3, 100)) * 5 + 40
    parts = [values[..., :13], values[..., 13:60], values[..., 60:]]
    found = Statistics.of(
        [(part.shape[-1], part.mean(-1, keepdims=True), part.var(-1, keepdims=True)) for part in parts]
    )
    np.testing.assert_allclose(found.mean, values.mean(-1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(found.variance, values.var(-1, keepdims=True), rtol=1e-6)
