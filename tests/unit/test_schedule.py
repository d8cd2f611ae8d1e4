"""Schedules and solver steps against closed forms."""

import itertools
import math

import numpy as np
import pytest

from edgedit.sampling.schedule import FlowMatchSchedule
from edgedit.sampling.solvers import euler_step


def test_unshifted_sigmas_fall_evenly_from_one_to_zero():
    np.testing.assert_allclose(FlowMatchSchedule().sigmas(4, 16), [1, 0.75, 0.5, 0.25, 0], atol=1e-7)


def test_one_step_goes_straight_from_noise_to_image():
    np.testing.assert_array_equal(FlowMatchSchedule(shift=3.0).sigmas(1, 16), [1, 0])


def test_static_shift_is_s_sigma_over_one_plus_s_minus_one_sigma():
    expected = [5.5 * x / (1 + 4.5 * x) for x in (1, 0.75, 0.5, 0.25)]
    np.testing.assert_allclose(FlowMatchSchedule(shift=5.5).sigmas(4, 16)[:-1], expected, rtol=1e-6)


@pytest.mark.parametrize(("tokens", "mu"), [(256, 0.5), (4096, 1.15), (2176, 0.825)])
def test_mu_is_linear_in_the_image_tokens(tokens, mu):
    assert FlowMatchSchedule(use_dynamic_shifting=True).mu(tokens) == pytest.approx(mu)


@pytest.mark.parametrize(("kind", "factor"), [("exponential", math.exp(0.825)), ("linear", 0.825)])
def test_dynamic_shift_by_mu(kind, factor):
    schedule = FlowMatchSchedule(use_dynamic_shifting=True, time_shift_type=kind)
    expected = [factor / (factor + 1 / x - 1) for x in (1, 0.75, 0.5, 0.25)]
    np.testing.assert_allclose(schedule.sigmas(4, 2176)[:-1], expected, rtol=1e-6)


def test_terminal_shift_ends_where_it_is_told():
    sigmas = FlowMatchSchedule(shift_terminal=0.1).sigmas(5, 16)
    assert sigmas[0] == 1
    assert sigmas[-2] == pytest.approx(0.1)


@pytest.mark.parametrize("spacing", ["use_karras_sigmas", "use_exponential_sigmas"])
def test_respacing_keeps_the_end_points(spacing):
    sigmas = FlowMatchSchedule(**{spacing: True}).sigmas(5, 16)
    np.testing.assert_allclose(sigmas[[0, -2, -1]], [1, 0.2, 0], rtol=1e-6)
    assert (np.diff(sigmas) < 0).all()


def test_exponential_spacing_is_geometric():
    sigmas = FlowMatchSchedule(use_exponential_sigmas=True).sigmas(5, 16)[:-1]
    np.testing.assert_allclose(sigmas[1:] / sigmas[:-1], 0.2 ** (1 / 4), rtol=1e-5)


def test_inverted_sigmas_rise_to_one():
    sigmas = FlowMatchSchedule(invert_sigmas=True).sigmas(4, 16)
    np.testing.assert_allclose(sigmas, [0, 0.25, 0.5, 0.75, 1], atol=1e-7)


def test_timesteps_are_sigmas_of_the_steps_times_a_thousand():
    schedule = FlowMatchSchedule()
    np.testing.assert_allclose(schedule.timesteps(schedule.sigmas(4, 16)), [1000, 750, 500, 250])


def test_sigmas_are_float32():
    for config in ({}, {"shift": 3.0}, {"use_karras_sigmas": True}, {"shift_terminal": 0.1}):
        assert FlowMatchSchedule(**config).sigmas(7, 45).dtype == np.float32, config


def shifted(level, shift):
    return shift * level / (1 + (shift - 1) * level)


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.5])
def test_steps_may_go_down_to_the_lowest_level_of_training(shift):
    """Which a static shift has moved already: it moves all levels, that one for the second time."""
    sigmas = FlowMatchSchedule(shift=shift).sigmas(5, 16, to_lowest=True)
    lowest = shifted(0.001, shift)
    expected = [shifted(1 - step * (1 - lowest) / 4, shift) for step in range(5)]
    np.testing.assert_allclose(sigmas, [*expected, 0], rtol=1e-5)


def test_the_lowest_level_is_not_shifted_by_a_dynamic_shift():
    sigmas = FlowMatchSchedule(use_dynamic_shifting=True, shift=3.0).sigmas(2, 256, to_lowest=True)
    factor = math.exp(0.5)
    assert sigmas[1] == pytest.approx(factor / (factor + 1000 - 1), rel=1e-5)


def test_one_step_to_the_lowest_level_is_one_step_from_noise():
    np.testing.assert_array_equal(FlowMatchSchedule(shift=3.0).sigmas(1, 16, to_lowest=True), [1, 0])


def test_euler_integrates_a_straight_path_exactly():
    noise, image = np.float32([2.0, -1.0]), np.float32([0.5, 0.25])
    sample, sigmas = noise, FlowMatchSchedule(shift=2.0).sigmas(6, 16)
    for sigma, sigma_next in itertools.pairwise(sigmas):
        sample = euler_step(sample, noise - image, sigma, sigma_next)
    np.testing.assert_allclose(sample, image, atol=1e-6)


def test_null_in_a_config_stands_for_the_default_and_zero_does_not():
    schedule = FlowMatchSchedule.from_config({"base_shift": 0.0, "max_shift": None, "shift_terminal": None})
    assert (schedule.base_shift, schedule.max_shift, schedule.shift_terminal) == (0.0, 1.15, None)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"_class_name": "DPMSolverMultistepScheduler"}, "DPMSolverMultistepScheduler"),
        ({"stochastic_sampling": True}, "stochastic_sampling"),
        ({"use_beta_sigmas": True}, "use_beta_sigmas"),
        ({"use_flow_sigmas": True}, "use_flow_sigmas"),
        ({"time_shift_type": "cubic"}, "cubic"),
        ({"use_karras_sigmas": True, "use_exponential_sigmas": True}, "only one"),
        ({"shift": 0.0}, "shift"),
        ({"shift": "3"}, "shift is '3'; it must be of type float"),
        ({"shift": float("nan")}, "shift is nan"),
        ({"shift": 10**400}, "shift is 1000"),
        ({"num_train_timesteps": 0}, "num_train_timesteps is 0"),
        ({"num_train_timesteps": 1e3}, "num_train_timesteps is 1000.0; it must be of type int"),
        ({"use_dynamic_shifting": 1}, "use_dynamic_shifting is 1; it must be of type bool"),
        ({"time_shift_type": ["linear"]}, "time_shift_type is"),
        ({"base_image_seq_len": 4096}, "base_image_seq_len is 4096; it must be below max_image_seq_len 4096"),
        ({"shift_terminal": 1.0}, "shift_terminal is 1.0; it must be at least 0 and below 1"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(config, named):
    with pytest.raises(ValueError, match=named):
        FlowMatchSchedule.from_config(config)


@pytest.mark.parametrize("steps", [0, -3])
def test_fewer_than_one_step_is_refused(steps):
    with pytest.raises(ValueError, match=str(steps)):
        FlowMatchSchedule().sigmas(steps, 16)


def test_a_terminal_shift_with_one_step_is_refused():
    with pytest.raises(ValueError, match="shift_terminal"):
        FlowMatchSchedule(shift_terminal=0.1).sigmas(1, 16)


def test_levels_that_no_sampler_can_use_are_refused():
    schedule = FlowMatchSchedule(use_dynamic_shifting=True, time_shift_type="linear", base_shift=-1, max_shift=-2)
    with pytest.raises(ValueError, match="not above 0 and finite"):
        schedule.sigmas(4, 16)
