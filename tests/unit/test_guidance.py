"""Guidance: the values, and the order of the operations."""

import numpy as np

from edgedit.sampling.guidance import away_from_skipped, combine, rescaled


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


def test_rescaling_gives_each_picture_the_deviation_of_its_conditional_prediction():
    rng = np.random.default_rng(0)
    guided, cond = rng.standard_normal((2, 3, 4, 5, 6), dtype=np.float32)
    guided *= np.float32([3, 5, 7]).reshape(3, 1, 1, 1)
    assert rescaled(guided, cond, 1.0).dtype == np.float32
    for index in range(3):
        whole, half = (rescaled(guided, cond, factor)[index] for factor in (1.0, 0.5))
        np.testing.assert_allclose(whole.std(), cond[index].std(), rtol=1e-5)
        np.testing.assert_allclose(half, (whole + guided[index]) / 2, rtol=1e-5, atol=1e-6)
        # what becomes of a picture does not depend on the others
        np.testing.assert_array_equal(
            rescaled(guided[index : index + 1], cond[index : index + 1], 0.5)[0], half
        )
    np.testing.assert_array_equal(rescaled(guided, cond, 0.0), guided)
