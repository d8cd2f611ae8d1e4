"""The Stable Diffusion 3 transformer against diffusers' SD3Transformer2DModel on random tiny models."""

import numpy as np
import pytest
from relative_error import relative_error
from tiny_sd3 import write_sd3_transformer

from edgedit.models.sd3 import SD3Transformer
from edgedit.parallel.context import ParallelContext

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

CONFIGS = {
    "3.0 medium: no norm of q and k": {},
    "3.5 large: norms": {"qk_norm": "rms_norm", "num_attention_heads": 5},
    "3.5 medium: dual attention": {
        "qk_norm": "rms_norm",
        "num_layers": 4,
        "dual_attention_layers": [0, 1],
        "num_attention_heads": 3,
        "attention_head_dim": 20,
        "sample_size": 24,
    },
    "dual attention in the last block, other output width": {
        "num_layers": 2,
        "dual_attention_layers": [1],
        "num_attention_heads": 7,
        "in_channels": 6,
        "out_channels": 3,
    },
    "one block": {"num_layers": 1, "out_channels": None},
}


def inputs(config, batch, height, width, text):
    rng = np.random.default_rng(1)
    arrays = {
        "hidden_states": rng.standard_normal((batch, config.in_channels, height, width)),
        "encoder_hidden_states": rng.standard_normal((batch, text, config.joint_attention_dim)),
        "pooled_projections": rng.standard_normal((batch, config.pooled_projection_dim)),
        "timestep": rng.uniform(0, 1000, size=batch),
    }
    return {name: values.astype(np.float32) for name, values in arrays.items()}


def expected_velocity(directory, arrays, **options):
    reference = diffusers.SD3Transformer2DModel.from_pretrained(directory).eval()
    with torch.no_grad():
        return reference(**{k: torch.from_numpy(v) for k, v in arrays.items()}, return_dict=False, **options)[
            0
        ]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("batch, height, width, text", [(1, 8, 8, 5), (3, 18, 10, 17)])
@pytest.mark.parametrize("ops", ["fused", "generic"])
def test_velocity(tmp_path, name, batch, height, width, text, ops):
    write_sd3_transformer(tmp_path, seed=3, **CONFIGS[name])
    arrays = inputs(SD3Transformer.read_config(tmp_path), batch, height, width, text)
    expected = expected_velocity(tmp_path, arrays)

    def velocity(context):
        return SD3Transformer.from_pretrained(tmp_path, threads=1, parallel=context)(**arrays)

    for size in (1, 2):
        for result in ParallelContext.local(size, velocity, ulysses_degree=size, ops=ops):
            assert relative_error(result, expected) <= 1e-4


@pytest.mark.parametrize("skip_layers", [[1], [0, 3], [3], [0, 1, 2, 3]])
def test_velocity_without_some_layers(tmp_path, skip_layers):
    write_sd3_transformer(tmp_path, seed=3, **CONFIGS["3.5 medium: dual attention"])
    arrays = inputs(SD3Transformer.read_config(tmp_path), 2, 6, 10, 7)
    expected = expected_velocity(tmp_path, arrays, skip_layers=skip_layers)
    result = SD3Transformer.from_pretrained(tmp_path, threads=1)(**arrays, skip_layers=skip_layers)
    assert relative_error(result, expected) <= 1e-4
