"""Noise and schedules against PyTorch and diffusers."""

import numpy as np
import pytest

from edgedit.sampling.noise import NoiseStream, randn
from edgedit.sampling.schedule import FlowMatchSchedule
from edgedit.sampling.solvers import euler_step

torch = pytest.importorskip("torch")
FlowMatchEulerDiscreteScheduler = pytest.importorskip("diffusers").FlowMatchEulerDiscreteScheduler

SEEDS = [0, 1, 42, 123456789, 2**32 - 1, 2**32, 2**32 + 5, 2**40 + 7, -1, -(2**63), 2**64 - 1]
SHAPES = [(1,), (2,), (3,), (15,), (16,), (17,), (31,), (3, 5), (100,), (4097,), (2, 16, 8, 8)]


def torch_randn(shape, seed):
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed)).numpy()


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_equals_torch_for_every_length_and_seed(seed):
    for shape in SHAPES:
        expected = torch_randn(shape, seed)
        np.testing.assert_allclose(randn(shape, seed), expected, rtol=0, atol=1e-6, err_msg=str(shape))


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_seeds_that_torch_refuses_are_refused(seed):
    with pytest.raises(ValueError):
        torch.Generator("cpu").manual_seed(seed)
    with pytest.raises(ValueError, match=str(seed)):
        randn((4,), seed)


CONFIGS = {
    "static": {},
    "static shift": {"shift": 3.0},
    "unusual shift": {"shift": 5.5},
    "dynamic": {"use_dynamic_shifting": True},
    "dynamic linear": {"use_dynamic_shifting": True, "time_shift_type": "linear"},
    "dynamic, other ends": {
        "use_dynamic_shifting": True, "base_shift": 0.0, "max_shift": 2.0,
        "base_image_seq_len": 16, "max_image_seq_len": 900,
    },
    "terminal": {"shift": 2.0, "shift_terminal": 0.02},
    "karras": {"use_karras_sigmas": True, "shift": 1.5},
    "exponential": {"use_exponential_sigmas": True},
    "inverted": {"invert_sigmas": True},
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("num_steps", [2, 3, 4, 20, 28])
@pytest.mark.parametrize("tokens", [4, 16, 45, 4096])
def test_sigmas_and_timesteps_equal_diffusers(name, num_steps, tokens):
    theirs = FlowMatchEulerDiscreteScheduler(**CONFIGS[name])
    ours = FlowMatchSchedule.from_config(dict(theirs.config))
    theirs.set_timesteps(sigmas=np.linspace(1.0, 1 / num_steps, num_steps), mu=ours.mu(tokens))
    sigmas = ours.sigmas(num_steps, tokens)
    np.testing.assert_allclose(sigmas, theirs.sigmas.numpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(ours.timesteps(sigmas), theirs.timesteps.numpy(), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 16, 45, 256, 4096])
def test_mu_equals_the_shift_of_the_flux_pipeline(tokens):
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    schedule = FlowMatchSchedule(base_shift=0.3, max_shift=1.3, base_image_seq_len=100, max_image_seq_len=999)
    assert schedule.mu(tokens) == pytest.approx(calculate_shift(tokens, 100, 999, 0.3, 1.3), abs=1e-12)


def test_euler_steps_are_bitwise_those_of_diffusers():
    theirs = FlowMatchEulerDiscreteScheduler(shift=1.7)
    theirs.set_timesteps(sigmas=np.linspace(1.0, 1 / 5, 5))
    ours = FlowMatchSchedule(shift=1.7)
    sigmas = ours.sigmas(5, 16)
    sample = randn((1, 16, 64), 0)
    reference = torch.from_numpy(sample)
    for i, timestep in enumerate(theirs.timesteps):
        velocity = randn((1, 16, 64), i + 1)
        sample = euler_step(sample, velocity, sigmas[i], sigmas[i + 1])
        reference = theirs.step(torch.from_numpy(velocity), timestep, reference, return_dict=False)[0]
    np.testing.assert_array_equal(sample, reference.numpy())


@pytest.mark.parametrize(
    "shapes",
    [[(1, 4, 8, 8), (2, 4, 8, 8), (1, 4, 8, 8)], [(17,), (33,), (16,)], [(3,), (5,), (40,), (1,), (2, 2)]],
)
def test_draws_that_follow_each_other_equal_those_of_one_generator(shapes):
    generator, stream = torch.Generator("cpu").manual_seed(7), NoiseStream(7)
    for shape in shapes:
        expected = torch.randn(shape, generator=generator).numpy()
        np.testing.assert_allclose(stream.randn(shape), expected, rtol=0, atol=1e-6, err_msg=str(shape))
