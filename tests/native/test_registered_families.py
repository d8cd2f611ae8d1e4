"""Every registered family on every layout of ranks that are threads: what one rank draws."""

import numpy as np
import pytest
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit import presets
from edgedit.config import ParallelConfig
from edgedit.models.architectures import transformer_class
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines import pipeline as pipelines
from edgedit.pipelines import settings
from edgedit.pipelines.pipeline import Pipeline

CALL = {"num_inference_steps": 2, "height": 12, "width": 20, "seed": 3, "max_sequence_length": 7}


def write_sd3_medium_35(directory, **options):
    return write_sd3_pipeline(directory, qk_norm="rms_norm", dual=(0, 1), with_t5=False, **options)


# family -> writer of a random model and what makes it guide between two branches
MODELS = {
    "FluxPipeline": [(write_flux_pipeline, {"true_cfg_scale": 3.0})],
    "StableDiffusion3Pipeline": [
        (write_sd3_pipeline, {}),
        (write_sd3_medium_35, {"skip_guidance_layers": [1], "skip_layer_guidance_stop": 0.9}),
    ],
}
CASES = [(writer, options) for models in MODELS.values() for writer, options in models]
LAYOUTS = {
    "ulysses 2": {"ulysses_degree": 2},
    "ulysses 3": {"ulysses_degree": 3},
    "ulysses 4": {"ulysses_degree": 4},
    "ulysses 5": {"ulysses_degree": 5},
    "ring 2": {"ring_degree": 2},
    "ring 3, ulysses 2": {"ring_degree": 3, "ulysses_degree": 2},
    "ring 2, cfg 2": {"ring_degree": 2, "cfg_degree": 2},
    "kv_gather 2": {"kv_gather_degree": 2},
    "kv_gather 3, ulysses 2": {"kv_gather_degree": 3, "ulysses_degree": 2},
    "cfg 2": {"cfg_degree": 2},
    "cfg 3": {"cfg_degree": 3},
    "dp 2": {"dp_degree": 2},
    "dp 2, cfg 2": {"dp_degree": 2, "cfg_degree": 2},
    "dp 2, ulysses 2": {"dp_degree": 2, "ulysses_degree": 2},
    "cfg 2, ulysses 2": {"cfg_degree": 2, "ulysses_degree": 2},
    "cfg 2, ulysses 3": {"cfg_degree": 2, "ulysses_degree": 3},
    "tp 2": {"tp_degree": 2},
    "tp 3": {"tp_degree": 3},
    "cfg 2, ulysses 2, tp 2": {"cfg_degree": 2, "ulysses_degree": 2, "tp_degree": 2},
}


def test_every_registered_family_is_here():
    assert set(MODELS) == set(settings.FAMILIES) == set(pipelines.FAMILIES)


@pytest.fixture(scope="module", params=CASES, ids=[writer.__name__ for writer, _ in CASES])
def model(request, tmp_path_factory):
    """A random model with five heads, its options, and the latents that one rank draws."""
    writer, options = request.param
    directory = writer(tmp_path_factory.mktemp("model") / "model", heads=5)
    with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as alone:
        return directory, options, alone("a cat", "two red dogs", **CALL, **options).latents


@pytest.mark.parametrize("ops", ["fused", "generic"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_draw_what_one_rank_draws(model, layout, ops):
    directory, options, expected = model
    degrees = LAYOUTS[layout]
    size = int(np.prod(list(degrees.values())))
    tolerance = 5e-5 if "ring_degree" in degrees else 1e-5  # a ring adds up in parts

    def run(context):
        ranked = Pipeline.from_pretrained(directory, threads=1, parallel=context)
        return ranked("a cat", "two red dogs", **CALL, **options)

    results = ParallelContext.local(size, run, **degrees, ops=ops)
    assert np.isfinite(expected).all()
    for result in results:
        np.testing.assert_array_equal(result.latents, results[0].latents)
        np.testing.assert_allclose(result.latents, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_a_network_that_is_not_registered_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r"'PaintTransformer' is not supported; supported: .*SD3Transformer2DModel"
    ):
        transformer_class({"_class_name": "PaintTransformer"})


@pytest.mark.parametrize("name", presets.names())
def test_presets_are_of_registered_networks(name):
    transformer = presets.read(name)["transformer"]
    config = transformer_class(transformer).config_class.from_dict(transformer)
    assert config.num_attention_heads == transformer["num_attention_heads"]
