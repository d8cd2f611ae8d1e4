"""Transformers with random weights, to measure with."""

from __future__ import annotations

import numpy as np
import pytest

from edgedit.models.random_flux import SIZES, random_request, random_transformer


def test_the_random_transformer_predicts_finite_values_and_the_same_ones_each_time() -> None:
    first, second = (random_transformer("tiny", threads=1) for _ in range(2))
    velocity = first(**random_request("tiny"))
    assert velocity.shape == (1, 64, 64)
    assert np.isfinite(velocity).all() and velocity.std() > 0.1
    np.testing.assert_array_equal(velocity, second(**random_request("tiny")))
    first.close(), second.close()


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_of_their_requests(name: str) -> None:
    size, request = SIZES[name], random_request(name)
    tokens = request["hidden_states"].shape[1] + request["encoder_hidden_states"].shape[1]
    assert tokens == size.tokens == len(request["img_ids"]) + len(request["txt_ids"])
    assert all(
        np.count_nonzero(request[k]) == request[k].size for k in ("hidden_states", "pooled_projections")
    )
