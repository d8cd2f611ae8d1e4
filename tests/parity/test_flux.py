"""The FLUX transformer against diffusers' FluxTransformer2DModel on random tiny models."""

import numpy as np
import pytest
from relative_error import relative_error
from tiny import write_flux_transformer

from edgedit.kernels import FAMILIES, Offer
from edgedit.models.flux import FluxTransformer
from edgedit.parallel.context import ParallelContext

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

CONFIGS = {
    "dev": {"guidance_embeds": True},
    "schnell, more blocks": {"num_layers": 3, "num_single_layers": 4, "num_attention_heads": 2},
    "odd heads, wide axes": {
        "num_attention_heads": 3,
        "attention_head_dim": 20,
        "axes_dims_rope": [4, 6, 10],
        "guidance_embeds": True,
        "num_single_layers": 1,
    },
    "seven heads, other output width": {"num_attention_heads": 7, "in_channels": 8, "out_channels": 12},
    "no single blocks": {"num_single_layers": 0},
}


def inputs(config, batch, height, width, text):
    rng = np.random.default_rng(1)
    rows, columns = np.indices((height, width)).reshape(2, -1)
    arrays = {
        "hidden_states": rng.standard_normal((batch, height * width, config.in_channels)),
        "encoder_hidden_states": rng.standard_normal((batch, text, config.joint_attention_dim)),
        "pooled_projections": rng.standard_normal((batch, config.pooled_projection_dim)),
        "timestep": rng.uniform(size=batch),
        "img_ids": np.stack([np.zeros_like(rows), rows, columns], 1),
        "txt_ids": np.zeros((text, 3)),
    }
    if config.guidance_embeds:
        arrays["guidance"] = rng.uniform(1, 6, size=batch)
    return {name: values.astype(np.float32) for name, values in arrays.items()}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("batch, height, width, text", [(1, 4, 4, 5), (2, 9, 5, 17)])
@pytest.mark.parametrize(
    "choice", [{"ops": "generic"}, *({"kernels": family} for family in FAMILIES)], ids=str
)
def test_velocity(tmp_path, name, batch, height, width, text, choice):
    if choice.get("kernels", "ggml") not in Offer.here().usable:
        pytest.skip("this processor has no such kernels")
    write_flux_transformer(tmp_path, seed=3, **CONFIGS[name])
    config = FluxTransformer.read_config(tmp_path)
    arrays = inputs(config, batch, height, width, text)
    reference = diffusers.FluxTransformer2DModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = reference(**{k: torch.from_numpy(v) for k, v in arrays.items()}, return_dict=False)[0]

    def velocity(context):
        return FluxTransformer.from_pretrained(tmp_path, threads=1, parallel=context)(**arrays)

    for size in (1, 2):
        for result in ParallelContext.local(size, velocity, ulysses_degree=size, **choice):
            assert relative_error(result, expected) <= 1e-4
