"""Pipelines in one process: alone, and as ranks in threads."""

import itertools
import json
import re
import warnings

import numpy as np
import pytest
from tiny import write_flux_pipeline

from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError
from edgedit.graph.counters import COUNTERS
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline
from edgedit.sampling.noise import randn

CALL = {"num_inference_steps": 2, "height": 16, "width": 20, "seed": 3}
GUIDED = {**CALL, "true_cfg_scale": 3.0}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A random pipeline with 5 heads; 20 image tokens at 16 x 20 pixels, 12 text tokens."""
    return write_flux_pipeline(
        tmp_path_factory.mktemp("model") / "flux", heads=5, guidance=True, t5_length=12,
        num_layers=1, num_single_layers=1, scheduler={"use_dynamic_shifting": True},
    )  # fmt: skip


@pytest.fixture(scope="module")
def pipeline(directory):
    with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as loaded:
        yield loaded


def on_ranks(directory, world_size, prompt, negative_prompt=None, degrees=None, **call):
    """The results of all ranks, as threads of this process."""

    def run(context):
        return Pipeline.from_pretrained(directory, threads=1, parallel=context)(
            prompt, negative_prompt, **call
        )

    return ParallelContext.local(world_size, run, **(degrees or {}))


# one rank


def test_the_seed_and_the_prompt_decide_the_picture(pipeline):
    first, again = pipeline("a cat", **CALL), pipeline("a cat", **CALL)
    np.testing.assert_array_equal(first.latents, again.latents)
    np.testing.assert_array_equal(np.asarray(first.images[0]), np.asarray(again.images[0]))
    assert first.images[0].size == (20, 16)
    assert np.abs(first.latents - pipeline("a dog", **CALL).latents).max() > 1e-3
    assert np.abs(first.latents - pipeline("a cat", **{**CALL, "seed": 4}).latents).max() > 1e-3


def test_every_field_of_the_request_reaches_the_picture(pipeline):
    base = pipeline("a cat", "a dog", **GUIDED).latents
    for change in (
        {"guidance_scale": 1.0},
        {"true_cfg_scale": 4.0},
        {"num_inference_steps": 3},
        {"max_sequence_length": 7},
    ):
        assert np.abs(pipeline("a cat", "a dog", **{**GUIDED, **change}).latents - base).max() > 1e-4, change
    assert np.abs(pipeline("a cat", "a red bird", **GUIDED).latents - base).max() > 1e-4


def test_a_negative_prompt_equal_to_the_prompt_changes_nothing(pipeline):
    np.testing.assert_array_equal(
        pipeline("a cat", "a cat", **GUIDED).latents, pipeline("a cat", **CALL).latents
    )


def test_guidance_is_linear_in_its_scale_over_one_step(pipeline):
    call = {**CALL, "num_inference_steps": 1}
    uncond, cond = pipeline("a dog", **call).latents, pipeline("a cat", **call).latents
    guided = pipeline("a cat", "a dog", **{**call, "true_cfg_scale": 2.5}).latents
    np.testing.assert_allclose(guided, uncond + 2.5 * (cond - uncond), atol=1e-4)


class PretendTransformer:
    """Predicts the timestep as velocity, and keeps what it was called with."""

    timestep_range = 1.0

    def __init__(self, original):
        self.compute_dtype, self.prepare = original.compute_dtype, original.prepare
        self.quantised_compute = original.quantised_compute
        self.conditions, self.calls = [], []

    def modulations(self, *condition):
        self.conditions.append(condition)
        return condition[0][:, :, None]  # [steps, B, 1]

    def velocity(self, **inputs):
        self.calls.append(inputs)
        return np.full_like(inputs["hidden_states"], inputs["modulations"].item())


def test_the_transformer_is_called_as_the_schedule_says(pipeline, monkeypatch):
    pretend = PretendTransformer(pipeline.transformer)
    monkeypatch.setattr(pipeline, "transformer", pretend)
    result = pipeline("a cat", "a dog", **{**GUIDED, "num_inference_steps": 3}, guidance_scale=5.5)
    # dynamic shift for 20 image tokens: exp(mu) on the line through (256, 0.5) and (4096, 1.15)
    factor = np.exp(0.5 + (20 - 256) * (1.15 - 0.5) / (4096 - 256))
    sigmas = [factor / (factor + 1 / level - 1) for level in (1, 2 / 3, 1 / 3)] + [0]
    called = [call["modulations"].item() for call in pretend.calls]
    np.testing.assert_allclose(called, np.repeat(sigmas[:-1], 2), rtol=1e-6)  # two branches a step
    assert len(pretend.conditions) == 2  # all steps of a branch at once
    for timesteps, _, guidance in pretend.conditions:
        np.testing.assert_allclose(timesteps, np.array(sigmas[:-1])[:, None], rtol=1e-6)
        assert guidance.item() == 5.5
    assert np.abs(pretend.conditions[0][1] - pretend.conditions[1][1]).max() > 1e-3
    for call in pretend.calls:
        assert not call["txt_ids"].any()
        assert call["txt_ids"].shape == (12, 3)
        np.testing.assert_array_equal(call["img_ids"], [(0, y, x) for y in range(4) for x in range(5)])
    uncond, cond = (pretend.calls[branch]["encoder_hidden_states"] for branch in (0, 1))
    assert np.abs(uncond - cond).max() > 1e-3
    integral = sum(sigma * (after - sigma) for sigma, after in itertools.pairwise(sigmas))
    np.testing.assert_allclose(result.latents, randn((1, 4, 8, 10), CALL["seed"]) + integral, atol=1e-5)


def test_a_batch_draws_what_its_prompts_draw_alone(pipeline):
    noise = randn((4, 4, 8, 10), 5)
    prompts, negatives = ["a cat", "a red apple on a table"], ["", "two dogs"]
    batch = pipeline(prompts, negatives, **GUIDED, num_images_per_prompt=2, latents=noise)
    for index in range(4):
        alone = pipeline(
            prompts[index // 2], negatives[index // 2], **GUIDED, latents=noise[index : index + 1]
        )  # fmt: skip
        np.testing.assert_allclose(batch.latents[index], alone.latents[0], atol=1e-5)
    assert len(batch.images) == 4


def test_a_batch_is_one_draw_of_noise(pipeline):
    drawn = pipeline(["a cat", "a dog"], **CALL)
    given = pipeline(["a cat", "a dog"], **CALL, latents=randn((2, 4, 8, 10), CALL["seed"]))
    np.testing.assert_array_equal(drawn.latents, given.latents)


def test_alternating_sizes_give_what_a_fresh_pipeline_gives(pipeline, directory):
    shapes = [(16, 16, 5), (24, 16, 9), (16, 16, 5)]
    in_turn = [
        pipeline("a cat", "a dog", **{**GUIDED, "height": h, "width": w}, max_sequence_length=length).latents
        for h, w, length in shapes
    ]
    np.testing.assert_array_equal(in_turn[0], in_turn[2])
    for (h, w, length), latents in zip(shapes[:2], in_turn[:2], strict=True):
        with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as fresh:
            call = {**GUIDED, "height": h, "width": w, "max_sequence_length": length}
            np.testing.assert_array_equal(fresh("a cat", "a dog", **call).latents, latents)


def test_steps_and_repeated_calls_build_nothing(pipeline):
    pipeline("a cat", "a dog", **{**GUIDED, "num_inference_steps": 4})

    def watch(step, num_steps, latents):
        steps.append((step, num_steps))
        counts.add((COUNTERS.graphs_built, COUNTERS.graphs_compiled, COUNTERS.buffers_allocated))

    steps, counts = [], {(COUNTERS.graphs_built, COUNTERS.graphs_compiled, COUNTERS.buffers_allocated)}
    pipeline("a bird", "a dog", **{**GUIDED, "num_inference_steps": 4}, callback=watch)
    assert steps == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert len(counts) == 1


def test_encoders_read_a_repeated_prompt_once(directory, monkeypatch):
    with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as loaded:
        clip, t5, read = loaded.text_encoder, loaded.text_encoder_2, []
        monkeypatch.setattr(loaded, "text_encoder", lambda ids: read.append("clip") or clip(ids))
        monkeypatch.setattr(loaded, "text_encoder_2", lambda ids: read.append("t5") or t5(ids))
        first = loaded(["a cat", "a dog"], "", **GUIDED)
        assert sorted(read) == ["clip"] * 3 + ["t5"] * 3
        again = loaded(["a cat", "a dog"], "", **GUIDED)
        loaded("a dog", "a cat", **{**GUIDED, "height": 12}, num_images_per_prompt=2)
        assert len(read) == 6
        np.testing.assert_array_equal(first.latents, again.latents)
        loaded("a cat", **CALL, max_sequence_length=7)  # another length is another text
        assert len(read) == 8
        monkeypatch.setattr(loaded, "text_encoder", clip)
        loaded("a cat", **CALL)  # so is that of another encoder
        assert read[8:] == ["t5"]
    assert len(loaded.encoded) == 0


@pytest.mark.parametrize("before", [["a cat", "a red bird"], ["a big red apple on a table"]])
def test_what_was_drawn_before_does_not_matter(pipeline, directory, before):
    with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig()) as fresh:
        fresh(before, **CALL)
        latents = fresh(["a dog", "a cat"], **CALL).latents
    np.testing.assert_array_equal(latents, pipeline(["a dog", "a cat"], **CALL).latents)


def test_a_prompt_that_is_cut_is_said_with_both_numbers(pipeline):
    prompt = "one two three four five six seven eight nine ten eleven twelve thirteen"
    for _ in range(2):  # also of a prompt that is kept
        with pytest.warns(UserWarning) as said:
            pipeline(prompt, **CALL)
        numbers = [[int(number) for number in re.findall(r"\d+", str(warning.message))] for warning in said]
        assert [limit for _, limit in numbers] == [16, 12]  # of CLIP and of T5
        assert all(length > limit for length, limit in numbers)


def test_a_seed_is_drawn_where_none_is_given_and_draws_the_same_again(pipeline):
    call = {**CALL, "seed": None}
    first, second = pipeline("a cat", **call), pipeline("a cat", **call)
    assert first.seed != second.seed
    np.testing.assert_array_equal(pipeline("a cat", **{**CALL, "seed": first.seed}).latents, first.latents)


def test_latents_that_are_not_finite_are_an_error(pipeline):
    noise = randn((1, 4, 8, 10), 0)
    noise[0, 0, 0, 0] = np.nan
    with pytest.raises(EdgeditError, match="not finite"):
        pipeline("a cat", **CALL, latents=noise)


def test_an_unknown_family_is_refused_with_the_supported_ones(tmp_path):
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "PaintPipeline"}))
    with pytest.raises(ValueError, match=r"PaintPipeline.*FluxPipeline"):
        Pipeline.from_pretrained(tmp_path, parallel=ParallelConfig())


# ranks as threads


@pytest.mark.parametrize(
    ("world_size", "degrees"),
    [
        (2, {"ulysses_degree": 2}),
        (3, {"ulysses_degree": 3}),
        (5, {"ulysses_degree": 5}),
        (4, {"cfg_degree": 2, "ulysses_degree": 2}),
    ],
)
def test_ranks_draw_what_one_rank_draws(pipeline, directory, world_size, degrees):
    results = on_ranks(directory, world_size, "a cat", "two red dogs", degrees, **GUIDED)
    alone = pipeline("a cat", "two red dogs", **GUIDED)
    for result in results:
        np.testing.assert_array_equal(result.latents, results[0].latents)
        assert (result.seed, result.schedule_digest) == (alone.seed, results[0].schedule_digest)
    np.testing.assert_allclose(results[0].latents, alone.latents, atol=1e-5)
    pixels, expected = (np.asarray(images[0]).astype(int) for images in (results[0].images, alone.images))
    assert np.abs(pixels - expected).max() <= 1
    assert all(result.images is None for result in results[1:])
    assert len(results[0].bytes_sent) == world_size
    assert all(sent > 0 for sent in results[0].bytes_sent)
    assert alone.bytes_sent == [0]


@pytest.mark.parametrize("degree", [4, 5])
def test_lengths_that_ranks_cannot_share_evenly(pipeline, directory, degree):
    """Texts of 1 to 77 tokens; images of 1 token (some ranks own none), of 9, 21 and 41 x 43 tokens."""
    sizes = [(4, 4), (12, 12), (12, 28)]
    requests = [{"max_sequence_length": length} for length in (1, 5, 7, 8, 9, 77)]
    if degree == 5:
        requests = requests[:1]
        sizes = [*sizes[:1], (164, 172)]
    requests += [{"height": height, "width": width} for height, width in sizes]
    calls = [{**CALL, "num_inference_steps": 1, **changes} for changes in requests]

    def run(context):
        ranked = Pipeline.from_pretrained(directory, threads=1, parallel=context)
        return [ranked("a cat", **call).latents for call in calls]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # short texts are cut
        by_rank = ParallelContext.local(degree, run)
        for index, call in enumerate(calls):
            expected = pipeline("a cat", **call).latents
            assert np.isfinite(expected).all()
            for latents in by_rank:
                np.testing.assert_allclose(latents[index], expected, atol=1e-5, err_msg=str(call))


@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize(("batch", "negative"), [(1, "dog"), (1, ""), (3, "dog"), (3, "")])
def test_guidance_over_ranks_is_bitwise_that_of_one_rank(pipeline, directory, degree, batch, negative):
    prompts = ["a big red apple on a table", "a cat", "a dog"][:batch]
    alone = pipeline(prompts, negative, **GUIDED)
    results = on_ranks(directory, degree, prompts, negative, {"cfg_degree": degree}, **GUIDED)
    for result in results:
        np.testing.assert_array_equal(result.latents, alone.latents)
    expected_notes = [] if degree == 2 else ["ranks 2, 3"]
    assert [note for note in results[0].notes if not any(part in note for part in expected_notes)] == []
    assert len(results[0].notes) == len(expected_notes)


def test_one_branch_on_two_cfg_ranks_runs_and_says_who_idles(pipeline, directory):
    results = on_ranks(directory, 2, "a cat", "a dog", {"cfg_degree": 2}, **{**GUIDED, "true_cfg_scale": 1.0})
    np.testing.assert_array_equal(results[0].latents, pipeline("a cat", **CALL).latents)
    assert len(results[0].notes) == 1
    assert "ranks 1 repeat others" in results[0].notes[0]
    assert results[0].bytes_sent == [0, 0]


def test_ranks_share_the_seed_that_one_of_them_drew(directory):
    results = on_ranks(directory, 2, "a cat", None, {"ulysses_degree": 2}, **{**CALL, "seed": None})
    assert results[0].seed == results[1].seed
    np.testing.assert_array_equal(results[0].latents, results[1].latents)


def test_requests_that_differ_between_ranks_are_refused_with_the_field(directory):
    def run(context):
        pipeline = Pipeline.from_pretrained(directory, threads=1, parallel=context)
        return pipeline("a cat", **CALL, guidance_scale=3.5 if context.rank == 0 else 5.5)

    with pytest.raises(EdgeditError, match=r"guidance_scale = 3\.5.*guidance_scale = 5\.5"):
        ParallelContext.local(2, run, ulysses_degree=2)


def test_models_that_differ_between_ranks_are_refused_with_the_setting(directory, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for entry in directory.iterdir():
        if entry.name != "scheduler":
            (other / entry.name).symlink_to(entry)
    (other / "scheduler").mkdir()
    config = json.loads((directory / "scheduler" / "scheduler_config.json").read_text())
    (other / "scheduler" / "scheduler_config.json").write_text(
        json.dumps({**config, "use_dynamic_shifting": False, "shift": 5.5})
    )

    def run(context):
        pipeline = Pipeline.from_pretrained([directory, other][context.rank], threads=1, parallel=context)
        return pipeline("a cat", **CALL)

    with pytest.raises(EdgeditError, match=r"shift=5\.5"):
        ParallelContext.local(2, run, ulysses_degree=2)
