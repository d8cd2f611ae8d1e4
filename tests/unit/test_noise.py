"""Noise: values that torch gave once, and properties that need no torch."""

import numpy as np
import pytest

from edgedit.sampling.noise import NoiseStream, randn

# torch.randn(n, generator=torch.Generator("cpu").manual_seed(seed)), PyTorch 2.13
STORED = {
    (0, 4): [1.540996, -0.2934289, -2.178789, 0.5684313],
    (42, 15): [0.5349047, 0.8093572, 1.11029, -1.689799, -0.9889599],
    (123456789, 1): [0.1102784],
    (0, 16): [0.3499832, 0.3081339, 0.1198415, 1.237658, 1.116777, -0.2472782],
    (42, 17): [
        1.926915, -0.1595975, -0.4973975, 0.4395893, -0.7581311, 1.078318, 0.8008006, 1.680621, 0.3558599,
        1.296423, 0.6104665, 1.334738, -0.2316243, 0.04175949, -0.2515753, 0.8598585, -0.3097268,
    ],
    (4294967301, 40): [
        0.2277979, -0.398505, -1.036467, 0.6704618, -0.1777046, 0.4313728, 1.241702, 2.150258, -2.228085,
        -1.289669,
    ],
    (-1, 7): [
        1.219763, -0.3929795, 1.023075, -0.3734211, -0.0755102, -1.258228, 0.3347157,
    ],
    (1, 65543): [
        -0.3271885, -0.2039579, 0.8060393, 0.604996, -0.3085122, 0.5121443, -0.7763781, 0.4954175,
    ],
}  # fmt: skip


@pytest.mark.parametrize(("seed", "count"), STORED)
def test_noise_equals_the_values_torch_gave(seed, count):
    expected = STORED[seed, count]
    np.testing.assert_allclose(randn((count,), seed)[-len(expected) :], expected, rtol=0, atol=1e-6)


def test_shape_only_reshapes_the_stream():
    np.testing.assert_array_equal(randn((2, 4, 6), 7).reshape(-1), randn((48,), 7))


def test_noise_is_float32_standard_normal():
    noise = randn((200, 500), 11)
    assert noise.dtype == np.float32
    assert abs(float(noise.mean())) < 0.01
    assert abs(float(noise.std()) - 1) < 0.01
    assert abs(float((noise**4).mean()) - 3) < 0.1


def test_only_the_low_32_bits_of_a_seed_count():
    np.testing.assert_array_equal(randn((40,), 5), randn((40,), 2**32 + 5))
    np.testing.assert_array_equal(randn((40,), -1), randn((40,), 2**32 - 1))
    assert not np.array_equal(randn((40,), 5), randn((40,), 6))


def test_no_elements_is_no_draw():
    assert randn((2, 0, 3), 1).shape == (2, 0, 3)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_outside_of_64_bits_is_refused(seed):
    with pytest.raises(ValueError, match=str(seed)):
        randn((4,), seed)


def test_draws_that_follow_each_other_equal_those_of_one_torch_generator():
    """The last values of each draw from one generator with seed 7; what a short draw leaves over is not lost."""
    expected = {
        3: [-0.1467951, 0.7861413, 0.9468216],
        5: [-0.8948279, -0.355625, 1.232386],
        17: [0.5011215, 0.2600362, -1.637021],
        1: [-0.06154806],
    }
    stream = NoiseStream(7)
    for count, values in expected.items():
        np.testing.assert_allclose(stream.randn((count,))[-len(values) :], values, rtol=0, atol=1e-6)
