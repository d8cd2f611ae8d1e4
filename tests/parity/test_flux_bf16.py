"""FLUX with bf16 weights: as close to the f32 model as PyTorch's own bf16, on the same random weights and inputs."""

import numpy as np
import pytest
from tiny import write_flux_transformer

from edgedit.config import ParallelConfig
from edgedit.dtypes import bf16_to_f32, f32_to_bf16
from edgedit.kernels import Offer
from edgedit.models.flux import FluxTransformer

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

CONFIG = {
    "num_layers": 2,
    "num_single_layers": 4,
    "num_attention_heads": 4,
    "attention_head_dim": 32,
    "axes_dims_rope": [8, 12, 12],
    "guidance_embeds": True,
}


def inputs(config, batch, height, width, text, seed):
    """All exact in bf16, timestep x 1000 and guidance x 1000 too, so that only what is computed is rounded."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return bf16_to_f32(f32_to_bf16(rng.standard_normal(shape, dtype=np.float32)))

    rows, columns = np.indices((height, width)).reshape(2, -1)
    return {
        "hidden_states": draw(batch, height * width, config.in_channels),
        "encoder_hidden_states": draw(batch, text, config.joint_attention_dim),
        "pooled_projections": draw(batch, config.pooled_projection_dim),
        "timestep": np.resize(np.float32([0.5, 0.25]), batch),
        "img_ids": np.stack([np.zeros_like(rows), rows, columns], 1).astype(np.float32),
        "txt_ids": np.zeros((text, 3), np.float32),
        "guidance": np.full(batch, 4.0, np.float32),
    }


def velocity_of_torch(directory, arrays, dtype):
    model = diffusers.FluxTransformer2DModel.from_pretrained(directory, torch_dtype=dtype).eval()
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    tensors = {name: x if name.endswith("ids") else x.to(dtype) for name, x in tensors.items()}
    with torch.no_grad():
        return model(**tensors, return_dict=False)[0].float().numpy()


def error(result, exact):
    return np.linalg.norm(result - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize("kernels", ["avx512", "avx2", "portable", "ggml"])
@pytest.mark.parametrize("batch, height, width, text, seed", [(1, 16, 16, 32, 0), (2, 9, 7, 5, 1)])
def test_our_bf16_is_no_worse_than_that_of_torch(tmp_path, kernels, batch, height, width, text, seed):
    if kernels not in Offer.here().usable:
        pytest.skip(f"this processor has no {kernels} kernels")
    write_flux_transformer(tmp_path, seed, modulation_bias=0.7, **CONFIG)
    arrays = inputs(FluxTransformer.read_config(tmp_path), batch, height, width, text, seed)
    exact = velocity_of_torch(tmp_path, arrays, torch.float32)
    theirs = error(velocity_of_torch(tmp_path, arrays, torch.bfloat16), exact)
    model = FluxTransformer.from_pretrained(
        tmp_path, "bf16", threads=1, parallel=ParallelConfig(kernels=kernels)
    )
    ours = error(model(**arrays), exact)
    assert 1e-4 < ours <= theirs, f"relative error {ours:.2e} against {theirs:.2e} of torch"
