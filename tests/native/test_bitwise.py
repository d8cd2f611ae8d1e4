"""Ranks and threads give the bits of one rank: with our kernels a token's result depends on no other row."""

from typing import NamedTuple

import numpy as np
import pytest
from test_flux import models, request  # noqa: F401  (models is a fixture)
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit.kernels import Offer
from edgedit.models.flux import FluxTransformer
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline


class Case(NamedTuple):
    """Kernels, type of the weights, what is multiplied where these are quantised, and the type of the wire, which is
    that of what only feeds products."""

    kernels: str
    dtype: str
    compute: str
    wire: str

    @property
    def weights(self):
        return {"compute_dtype": self.dtype, "quantised_compute": self.compute}


CASES = [
    Case("avx512", "f32", "exact", "f32"),
    Case("avx512", "bf16", "exact", "bf16"),
    Case("avx512", "q8_0", "int8", "bf16"),
    Case("avx2", "f32", "exact", "f32"),
    Case("avx2", "bf16", "exact", "f32"),
    Case("avx2", "q8_0", "int8", "f32"),
    Case("portable", "f32", "exact", "f32"),
    Case("portable", "bf16", "exact", "bf16"),
    Case("portable", "q8_0", "exact", "bf16"),
]


@pytest.fixture(params=CASES, ids="-".join)
def case(request):
    """One that this processor has the kernels for."""
    if request.param.kernels not in Offer.here().usable:
        pytest.skip(f"this processor has no {request.param.kernels} kernels")
    return request.param


def on_ranks(directory, requests, case, size, threads, **options):
    """Each rank's outputs for the requests in turn, and the types on its wire."""

    def run(context):
        model = FluxTransformer.from_pretrained(directory, **case.weights, threads=threads, parallel=context)
        outputs = [model(**r) for r in requests]
        schedules = [executor.schedule for executor in model._executors.values()]
        wire = {c.dtype for schedule in schedules for c in schedule.collectives if c.kind == "all_to_all"}
        return outputs, wire

    return ParallelContext.local(size, run, ulysses_degree=size, kernels=case.kernels, **options)


@pytest.mark.parametrize("size, threads", [(1, 2), (1, 3), (2, 1), (3, 3), (4, 2), (5, 1)])
def test_ranks_and_threads_give_the_bits_of_one(models, case, size, threads):  # noqa: F811
    """5 heads and odd numbers of tokens; one text token, of which most ranks have none; a batch."""
    directory = models(5, attention_head_dim=32, axes_dims_rope=[8, 12, 12], guidance_embeds=True)
    config = FluxTransformer.read_config(directory)
    requests = [request(config, text=11), request(config, 7, 3, text=1), request(config, 5, 3, 7, batch=3)]
    ((expected, _),) = on_ranks(directory, requests, case, 1, 1)
    for outputs, on_wire in on_ranks(directory, requests, case, size, threads):
        assert on_wire == ({case.wire} if size > 1 else set())
        for mine, theirs in zip(outputs, expected, strict=True):
            assert np.isfinite(mine).all()
            np.testing.assert_array_equal(mine, theirs)


def test_a_wire_of_f32_changes_nothing_and_a_narrower_one_does(models, case):  # noqa: F811
    directory = models(5, attention_head_dim=32, axes_dims_rope=[8, 12, 12], guidance_embeds=True)
    requests = [request(FluxTransformer.read_config(directory))]
    expected, wide, narrow = (
        on_ranks(directory, requests, case, size, 1, wire_dtype=wire)[0][0][0]
        for size, wire in ((1, "auto"), (2, "f32"), (2, "bf16"))
    )
    np.testing.assert_array_equal(wide, expected)
    assert np.array_equal(narrow, expected) == (case.wire == "bf16")


def test_what_is_computed_for_all_steps_is_what_each_would_compute(models, case):  # noqa: F811
    directory = models(4, attention_head_dim=32, axes_dims_rope=[8, 12, 12], guidance_embeds=True)
    r = request(FluxTransformer.read_config(directory), batch=2)
    timesteps = np.linspace(1, 0, 9, dtype=np.float32)[:, None] - np.float32([0, 0.01])

    def run(context):
        model = FluxTransformer.from_pretrained(directory, **case.weights, threads=2, parallel=context)
        conditions = (r["pooled_projections"], r["guidance"])
        return model.modulations(timesteps, *conditions), [
            model.modulations(timesteps[step : step + 1], *conditions)[0] for step in range(len(timesteps))
        ]

    ((together, alone),) = ParallelContext.local(1, run, kernels=case.kernels)
    np.testing.assert_array_equal(together, alone)


def write_flux(directory):
    return write_flux_pipeline(
        directory, heads=5, head_dim=32, axes=(8, 12, 12), guidance=True, t5_length=13, num_layers=1,
        num_single_layers=2,
    )  # fmt: skip


def write_sd3(directory):
    return write_sd3_pipeline(directory, heads=5, head_dim=32, num_layers=2, dual=(0,), qk_norm="rms_norm")


GUIDED = {write_flux: {"true_cfg_scale": 2.0}, write_sd3: {"guidance_scale": 2.0}}


@pytest.fixture(scope="module", params=GUIDED, ids=["flux", "sd3"])
def model(request, tmp_path_factory):
    """The directory of a pipeline with five heads, and what lets it guide between two branches."""
    write = request.param
    return write(tmp_path_factory.mktemp("model") / "model"), GUIDED[write]


@pytest.mark.parametrize(
    "degrees",
    [
        {"ulysses_degree": 2},
        {"ulysses_degree": 3},
        {"ulysses_degree": 4},
        {"cfg_degree": 2},
        {"cfg_degree": 2, "ulysses_degree": 2},
        {"kv_gather_degree": 2},
        {"kv_gather_degree": 2, "ulysses_degree": 2},
        {"dp_degree": 2},
    ],
    ids=str,
)
def test_pictures_are_those_of_one_rank(model, case, degrees):
    directory, guided = model

    def draw(context):
        pipeline = Pipeline.from_pretrained(
            directory, **case.weights, threads=1 + context.world_size % 3, parallel=context
        )
        call = {"num_inference_steps": 3, "height": 20, "width": 28, "seed": 4}
        result = pipeline(["a cat", "a red bird"], "ugly", **call, **guided)
        return result.latents, [np.asarray(image) for image in result.images or []]

    ((expected, pictures),) = ParallelContext.local(1, draw, kernels=case.kernels)
    size = np.prod(list(degrees.values())).item()
    results = ParallelContext.local(size, draw, kernels=case.kernels, **degrees)
    for latents, _ in results:
        np.testing.assert_array_equal(latents, expected)
    np.testing.assert_array_equal(results[0][1], pictures)
