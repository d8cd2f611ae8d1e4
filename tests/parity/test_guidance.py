"""Rescaled guidance against diffusers' own."""

import numpy as np
import pytest
import torch
from diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion import rescale_noise_cfg

from edgedit.sampling.guidance import rescaled


@pytest.mark.parametrize("factor", [0.3, 0.7, 1.0])
def test_rescaled_guidance_is_that_of_diffusers(factor):
    rng = np.random.default_rng(0)
    guided, cond = rng.standard_normal((2, 3, 16, 8, 8), dtype=np.float32) + np.float32(0.3)
    guided *= np.float32(6)
    expected = rescale_noise_cfg(torch.from_numpy(guided), torch.from_numpy(cond), guidance_rescale=factor)
    np.testing.assert_allclose(rescaled(guided, cond, factor), expected.numpy(), rtol=1e-5, atol=1e-5)
