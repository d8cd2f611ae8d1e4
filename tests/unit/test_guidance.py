"""Guidance: the values, and the order of the operations."""

import numpy as np

from edgedit.sampling.guidance import away_from_skipped, combine


def test_guidance_moves_from_uncond_towards_cond_and_beyond():
    uncond, cond = np.float32([1.0, 2.0]), np.float32([3.0, 1.0])
    np.testing.assert_allclose(combine(uncond, cond, 2.5), [6.0, -0.5])
    np.testing.assert_array_equal(combine(uncond, cond, 0.0), uncond)


def test_the_order_of_operations_is_uncond_plus_scaled_difference():
    rng = np.random.default_rng(0)
    uncond, cond = rng.standard_normal((2, 1000)).astype(np.float32)
    scale = np.float32(3.7)
    other_order = scale * cond + (np.float32(1) - scale) * uncond
    result = combine(uncond, cond, 3.7)
    np.testing.assert_array_equal(result, uncond + scale * (cond - uncond))
    assert (result != other_order).any()
    assert result.dtype == np.float32


def test_guidance_moves_away_from_the_prediction_without_layers():
    guided, cond, skipped = np.float32([1.0, 2.0]), np.float32([3.0, 1.0]), np.float32([2.0, 2.0])
    result = away_from_skipped(guided, cond, skipped, 2.5)
    np.testing.assert_allclose(result, [3.5, -0.5])
    assert result.dtype == np.float32
    np.testing.assert_array_equal(away_from_skipped(guided, cond, cond, 2.5), guided)
