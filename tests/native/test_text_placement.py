"""Text encoders on every rank, or on the first alone: the same pictures, less memory."""

import numpy as np
import pytest
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit.config import ParallelConfig
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline

CALL = {"num_inference_steps": 2, "height": 12, "width": 20, "seed": 3, "max_sequence_length": 9}


@pytest.fixture(scope="module", params=[write_flux_pipeline, write_sd3_pipeline])
def directory(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("model") / "model", heads=2)


@pytest.mark.parametrize("degrees", [{"ulysses_degree": 2}, {"cfg_degree": 2, "dp_degree": 2}])
def test_text_that_was_sent_draws_what_text_of_ones_own_does(directory, degrees):
    prompts, size = ["a cat", "two red dogs"], int(np.prod(list(degrees.values())))
    call = {**CALL, **({"true_cfg_scale": 3.0} if "flux" in str(directory) else {})}

    def run(context):
        pipeline = Pipeline.from_pretrained(directory, threads=1, parallel=context)
        encoders = [name for name in pipeline._parts if name.startswith("text_encoder")]
        loaded = [name for name in encoders if getattr(pipeline, name) is not None]
        result = pipeline(prompts, "a dog", **call)
        again = pipeline(prompts[::-1], "a dog", **call)
        assert np.abs(again.latents - result.latents).max() > 1e-3
        return result.latents, loaded, len(encoders)

    expected = ParallelContext.local(size, run, **degrees)
    sent = ParallelContext.local(size, run, **degrees, text_encoders="first")
    for rank, ((latents, loaded, count), (theirs, all_loaded, _)) in enumerate(
        zip(sent, expected, strict=True)
    ):
        np.testing.assert_array_equal(latents, theirs)
        assert len(loaded) == (count if rank == 0 else 0)
        assert len(all_loaded) == count


def test_a_prompt_that_is_cut_is_said_once_by_rank_0(directory):
    def run(context):
        pipeline = Pipeline.from_pretrained(directory, threads=1, parallel=context)
        pipeline("one two three four five six seven eight", **CALL)

    said = []
    for ranks, place in ((1, "replicated"), (2, "replicated"), (2, "first")):
        with pytest.warns(UserWarning, match="is cut to") as warnings:
            ParallelContext.local(ranks, run, ulysses_degree=ranks, text_encoders=place)
        said.append(sorted(str(warning.message) for warning in warnings))
    assert said[0] == said[1] == said[2]


def test_an_unknown_place_is_refused():
    with pytest.raises(ValueError, match="text_encoders is 'last'; legal: replicated, first"):
        ParallelConfig(text_encoders="last")
    assert ParallelConfig(text_encoders="first").encodes_text


@pytest.mark.parametrize(("size", "degree"), [(2, 2), (4, 3)])
def test_ranks_that_share_t5_draw_what_one_rank_draws(directory, size, degree):
    """Its weights over some ranks, whose text the others get."""
    call = {**CALL, **({"true_cfg_scale": 3.0} if "flux" in str(directory) else {})}
    degrees = {"cfg_degree": 2, "dp_degree": size // 2}

    def run(context):
        pipeline = Pipeline.from_pretrained(directory, threads=1, parallel=context)
        encoders = [part for name in pipeline._parts if (part := getattr(pipeline, name)) in pipeline.models]
        nbytes = {type(model).__name__: model.weights.nbytes for model in encoders}
        return pipeline(["a cat", "two red dogs"], "a dog", **call).latents, nbytes.get("T5EncoderModel", 0)

    ((expected, whole),) = ParallelContext.local(1, run)
    results = ParallelContext.local(size, run, **degrees, text_encoder_degree=degree)
    for rank, (latents, nbytes) in enumerate(results):
        np.testing.assert_array_equal(latents, results[0][0])
        np.testing.assert_allclose(latents, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        assert (0 < nbytes < whole) == (rank < degree)
        assert (nbytes == 0) == (rank >= degree)


def test_sharing_t5_over_more_ranks_than_heads_or_without_t5_is_refused(directory, tmp_path):
    parallel = ParallelConfig.for_plan(cfg_degree=2, dp_degree=3, text_encoder_degree=5)
    with pytest.raises(ValueError, match="text_encoder_degree 5 is more than the 4 heads of T5"):
        Pipeline.from_pretrained(directory, parallel=parallel)
    without = write_sd3_pipeline(tmp_path / "model", heads=2, with_t5=False)
    with pytest.raises(ValueError, match="text_encoder_degree is 5, but .* has no T5"):
        Pipeline.from_pretrained(without, parallel=parallel)
