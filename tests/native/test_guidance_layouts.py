"""Guidance branches over more, fewer and as many cfg ranks, beside every other axis: what one rank draws."""

import numpy as np
import pytest
from row_kernels import ROW_KERNELS
from tiny_sd3 import write_sd3_pipeline

from edgedit.config import ParallelConfig
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline

CALL = {"num_inference_steps": 3, "height": 12, "width": 20, "seed": 3, "max_sequence_length": 7}
SKIPPING = {"skip_guidance_layers": [1], "skip_layer_guidance_stop": 0.7}
OTHERS = [
    {},
    {"ring_degree": 2},
    {"tp_degree": 2},
    *(
        pytest.param({axis: 2}, marks=pytest.mark.slow)
        for axis in ("ulysses_degree", "kv_gather_degree", "dp_degree")
    ),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_sd3_pipeline(tmp_path_factory.mktemp("model") / "sd3", heads=4)


@pytest.fixture(scope="module")
def alone(directory):
    with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig(kernels=ROW_KERNELS)) as pipeline:
        yield pipeline


def on_ranks(directory, degrees, **call):
    def run(context):
        return Pipeline.from_pretrained(directory, threads=1, parallel=context)(
            ["a cat", "two dogs"], "a red hat", **call
        )

    return ParallelContext.local(int(np.prod(list(degrees.values()))), run, **degrees, kernels=ROW_KERNELS)


def check(results, expected, degrees):
    tolerance = 5e-5 if "ring_degree" in degrees else 1e-5
    for result in results:
        np.testing.assert_array_equal(result.latents, results[0].latents)
        error = np.abs(result.latents - expected.latents).max() / np.abs(expected.latents).max()
        assert error == 0 if set(degrees) <= {"cfg_degree", "dp_degree"} else error < tolerance


@pytest.mark.parametrize("others", OTHERS, ids=str)
def test_two_branches_on_four_cfg_ranks_name_who_idles(directory, alone, others):
    degrees = {"cfg_degree": 4, **others}
    results = on_ranks(directory, degrees, **CALL)
    check(results, alone(["a cat", "two dogs"], "a red hat", **CALL), degrees)
    inner = int(np.prod([degree for name, degree in others.items() if name != "dp_degree"]))
    block = 4 * inner
    idle = [rank for rank in range(len(results)) if rank % block >= 2 * inner]
    assert results[0].notes == [
        f"cfg 4: the request has 2 guidance branches, ranks {', '.join(map(str, idle))} repeat others"
    ]


@pytest.mark.parametrize(
    "degrees",
    [{"cfg_degree": 3}, {"cfg_degree": 3, "dp_degree": 2}, {"cfg_degree": 3, "ulysses_degree": 2}],
    ids=str,
)
def test_three_branches_with_rescaled_guidance(directory, alone, degrees):
    call = {**CALL, **SKIPPING, "guidance_rescale": 0.7}
    results = on_ranks(directory, degrees, **call)
    expected = alone(["a cat", "two dogs"], "a red hat", **call)
    check(results, expected, degrees)
    assert not results[0].notes
    without = alone(["a cat", "two dogs"], "a red hat", **{**call, "guidance_rescale": 0.0})
    assert np.abs(without.latents - expected.latents).max() > 1e-2


def test_one_branch_on_two_cfg_ranks(directory, alone):
    call = {**CALL, "guidance_scale": 1.0}
    results = on_ranks(directory, {"cfg_degree": 2}, **call, guidance_rescale=0.5)
    check(results, alone(["a cat", "two dogs"], "a red hat", **call), {"cfg_degree": 2})
    assert "ranks 1 repeat others" in results[0].notes[0]


@pytest.mark.parametrize("factor", [-0.1, 1.5, float("nan")])
def test_factors_of_rescaling_outside_0_to_1_are_refused(alone, factor):
    with pytest.raises(ValueError, match="guidance_rescale is .*; legal are 0 to 1"):
        alone("a cat", **CALL, guidance_rescale=factor)
