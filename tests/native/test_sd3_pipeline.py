"""Stable Diffusion 3 pipelines in one process: text, guidance between up to three branches, settings."""

import itertools
import json
import shutil

import numpy as np
import pytest
from tiny_sd3 import write_sd3_pipeline

from edgedit.config import ParallelConfig
from edgedit.errors import CheckpointError
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.parts import of_directory
from edgedit.pipelines.pipeline import Pipeline
from edgedit.pipelines.sd3_settings import SD3Settings
from edgedit.sampling.noise import randn

CALL = {"num_inference_steps": 4, "height": 16, "width": 20, "seed": 3, "max_sequence_length": 12}
SKIPPING = {**CALL, "skip_guidance_layers": [1], "skip_layer_guidance_stop": 0.6}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A random pipeline with 5 heads and dual attention; 20 image tokens at 16 x 20 pixels, 16 + 12 text tokens."""
    return write_sd3_pipeline(
        tmp_path_factory.mktemp("model") / "sd3", heads=5, dual=(0,), qk_norm="rms_norm"
    )


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


# guidance


def test_every_field_of_the_request_reaches_the_picture(pipeline):
    base = pipeline("a cat", "a dog", **SKIPPING).latents
    for change in (
        {"guidance_scale": 2.0},
        {"num_inference_steps": 5},
        {"max_sequence_length": 7},
        {"skip_guidance_layers": [0]},
        {"skip_guidance_layers": None},
        {"skip_layer_guidance_scale": 1.0},
        {"skip_layer_guidance_start": 0.3},
        {"skip_layer_guidance_stop": 0.9},
    ):
        changed = pipeline("a cat", "a dog", **{**SKIPPING, **change}).latents
        assert np.abs(changed - base).max() > 1e-4, change
    assert np.abs(pipeline("a cat", "a red bird", **SKIPPING).latents - base).max() > 1e-4


def test_guidance_is_against_an_empty_prompt_unless_told_otherwise(pipeline):
    latents = pipeline("a cat", **CALL).latents
    np.testing.assert_array_equal(latents, pipeline("a cat", "", guidance_scale=7.0, **CALL).latents)
    assert np.abs(latents - pipeline("a cat", guidance_scale=1.0, **CALL).latents).max() > 1e-3


def test_skipped_layers_act_by_their_difference(pipeline, monkeypatch):
    """One guided step out of two: uncond + s (cond - uncond) + t (cond - skipped)."""
    call = {**CALL, "num_inference_steps": 2, "guidance_scale": 3.0}
    first_only = {"skip_layer_guidance_start": 0.0, "skip_layer_guidance_stop": 1.0}
    predictions = []
    original = pipeline.transformer.velocity

    def velocity(latents, sequence, modulations, skip_layers):
        predictions.append((skip_layers, original(latents, sequence, modulations, skip_layers)))
        return predictions[-1][1]

    monkeypatch.setattr(pipeline.transformer, "velocity", velocity)
    latents = []
    pipeline(
        "a cat", **call, **first_only, skip_guidance_layers=[1], skip_layer_guidance_scale=2.5,
        callback=lambda step, of, x: latents.append(x),
    )  # fmt: skip
    # fractions are exclusive, so the first step is not guided away
    assert [skipped for skipped, _ in predictions] == [(), (), (), (), (1,)]
    uncond, cond, skipped = (prediction for _, prediction in predictions[2:])
    sigma = pipeline.sigmas(2, 20)[1]
    expected = latents[0] - sigma * (uncond + 3 * (cond - uncond) + 2.5 * (cond - skipped))
    np.testing.assert_allclose(latents[1], expected, rtol=1e-5, atol=1e-5)


class PretendTransformer:
    """Predicts the timestep in thousandths as velocity, and keeps what it was called with."""

    timestep_range = 1000.0

    def __init__(self, original):
        self.compute_dtype, self.prepare = original.compute_dtype, original.prepare
        self.quantised_compute = original.quantised_compute
        self.conditions, self.calls = [], []

    def modulations(self, *condition):
        self.conditions.append(condition)
        return condition[0][:, :, None]  # [steps, B, 1]

    def velocity(self, latents, sequence, modulations, skip_layers):
        self.calls.append((sequence, skip_layers))
        return np.full_like(latents, modulations.item() / 1000)


def test_the_transformer_is_called_as_the_schedule_says(pipeline, monkeypatch):
    pretend = PretendTransformer(pipeline.transformer)
    monkeypatch.setattr(pipeline, "transformer", pretend)
    result = pipeline("a cat", "a dog", **{**CALL, "num_inference_steps": 3})

    def shifted(level):
        return 3 * level / (1 + 2 * level)

    lowest = shifted(0.001)
    sigmas = [shifted(level) for level in (1, (1 + lowest) / 2, lowest)] + [0]
    assert len(pretend.conditions) == 2  # all steps of a branch at once
    for timesteps, pooled, guidance in pretend.conditions:
        np.testing.assert_allclose(timesteps, 1000 * np.array(sigmas[:-1])[:, None], rtol=1e-5)
        assert pooled.shape == (1, 16 + 24)
        assert guidance is None
    assert len(pretend.calls) == 6
    integral = sum(sigma * (after - sigma) for sigma, after in itertools.pairwise(sigmas))
    np.testing.assert_allclose(result.latents, randn((1, 4, 8, 10), CALL["seed"]) + integral, atol=1e-5)


# text


def test_states_of_both_clips_stand_before_those_of_t5(pipeline):
    text = pipeline.encode("a cat", 9)
    ids, ids_2 = (tokenizer.encode(["a cat"])[0] for tokenizer in (pipeline.tokenizer, pipeline.tokenizer_2))
    assert (ids != ids_2).any()  # CLIP-G fills up with another token
    (states, pooled), (states_2, pooled_2) = pipeline.text_encoder(ids), pipeline.text_encoder_2(ids_2)
    assert text.sequence.shape == (1, 16 + 9, 80)
    np.testing.assert_array_equal(text.sequence[:, :16, :32], states)
    np.testing.assert_array_equal(text.sequence[:, :16, 32:72], states_2)
    assert not text.sequence[:, :16, 72:].any()
    ids_3, _ = pipeline.tokenizer_3.encode(["a cat"], 9)
    np.testing.assert_array_equal(text.sequence[:, 16:], pipeline.text_encoder_3(ids_3))
    np.testing.assert_array_equal(text.pooled, np.concatenate([pooled, pooled_2], 1))


def test_without_t5_its_states_are_zeros(directory, pipeline, tmp_path):
    shutil.copytree(directory, tmp_path / "small", ignore=shutil.ignore_patterns("*_3"))
    index = json.loads((directory / "model_index.json").read_text())
    for absent in ({"text_encoder_3": [None, None], "tokenizer_3": [None, None]}, {}):
        kept = {name: entry for name, entry in index.items() if not name.endswith("_3")}
        (tmp_path / "small" / "model_index.json").write_text(json.dumps({**kept, **absent}))
        with Pipeline.from_pretrained(tmp_path / "small", threads=1, parallel=ParallelConfig()) as small:
            text, whole = small.encode("a cat", 9), pipeline.encode("a cat", 9)
            np.testing.assert_array_equal(text.sequence[:, :16], whole.sequence[:, :16])
            assert text.sequence.shape == whole.sequence.shape
            assert not text.sequence[:, 16:].any()
            assert np.isfinite(small("a cat", **CALL).latents).all()


def test_a_third_encoder_that_the_index_names_has_to_be_there(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "torn", ignore=shutil.ignore_patterns("text_encoder_3"))
    with pytest.raises(CheckpointError, match="text_encoder_3"):
        Pipeline.from_pretrained(tmp_path / "torn", threads=1, parallel=ParallelConfig())


def test_a_prompt_that_is_cut_is_said_for_each_limit(pipeline):
    prompt = "one two three four five six seven eight nine ten eleven twelve thirteen"
    with pytest.warns(UserWarning) as said:
        pipeline(prompt, **CALL, guidance_scale=1.0)
    limits = [str(warning.message).split("cut to ")[1].split(";")[0] for warning in said]
    assert sorted(limits) == ["12", "16", "16"]


def test_a_batch_draws_what_its_prompts_draw_alone(pipeline):
    noise = randn((3, 4, 8, 10), 5)
    prompts = ["a cat", "a red apple on a table", "two dogs"]
    batch = pipeline(prompts, **SKIPPING, latents=noise)
    for index, prompt in enumerate(prompts):
        alone = pipeline(prompt, **SKIPPING, latents=noise[index : index + 1])
        np.testing.assert_allclose(batch.latents[index], alone.latents[0], atol=1e-4)


# settings


def test_settings_are_those_of_the_configs(directory):
    settings = SD3Settings.read(of_directory(directory))
    limits = settings.limits
    assert (limits.size, limits.multiple, limits.largest, limits.latent_channels) == (32, 4, 48, 4)
    assert (limits.max_sequence_length, limits.guidance_scale, limits.num_skippable_layers) == (256, 7.0, 3)
    assert (settings.fixed_text_tokens, settings.text_width, settings.has_t5, settings.num_heads) == (
        16,
        80,
        True,
        5,
    )


@pytest.mark.parametrize(
    ("component", "words"),
    [
        ("text_encoder", "text_encoder is 'Other'; supported is 'CLIPTextModelWithProjection'"),
        ("text_encoder_3", "text_encoder_3 is 'Other'; supported is 'T5EncoderModel', or none"),
        ("transformer", "transformer is 'Other'; supported is 'SD3Transformer2DModel'"),
    ],
)
def test_components_of_other_classes_are_refused_before_weights_are_read(
    directory, tmp_path, component, words
):
    index = json.loads((directory / "model_index.json").read_text())
    (tmp_path / "model_index.json").write_text(json.dumps({**index, component: ["somewhere", "Other"]}))
    with pytest.raises(ValueError, match=words):
        Pipeline.from_pretrained(tmp_path, parallel=ParallelConfig())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"height": 52}, "height is 52 px; this model draws at most 48"),
        ({"height": 18}, "height is 18 px; it must be a multiple of 4, nearest: 16 or 20"),
        ({"true_cfg_scale": 2.0}, "this model has one guidance, which guidance_scale sets"),
        ({"skip_guidance_layers": [3]}, "legal layers: 0 to 2"),
    ],
)
def test_requests_that_cannot_work_are_refused(pipeline, options, words):
    with pytest.raises(ValueError, match=words):
        pipeline("a cat", **{**CALL, **options})


# ranks as threads


@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize("negative", ["a dog", ""])
def test_three_branches_over_ranks_are_bitwise_those_of_one_rank(pipeline, directory, degree, negative):
    """Two ranks share three branches, of three each has one, of four the last repeats."""
    prompts = ["a big red apple on a table", "a cat"]
    alone = pipeline(prompts, negative, **SKIPPING)
    results = on_ranks(directory, degree, prompts, negative, {"cfg_degree": degree}, **SKIPPING)
    for result in results:
        np.testing.assert_array_equal(result.latents, alone.latents)
    assert len(results[0].notes) == (1 if degree == 4 else 0)
    # of 4 steps, the second and third have the third branch
    prediction, peers = alone.latents.nbytes, degree - 1
    sent = {2: [6, 4], 3: [4, 4, 2], 4: [4, 4, 2, 4]}[degree]
    assert results[0].bytes_sent == [count * peers * prediction for count in sent]


def test_a_rank_encodes_what_its_branches_read(directory):
    """Of three branches on two ranks the first and the last share one."""

    def run(context):
        pipeline = Pipeline.from_pretrained(directory, threads=1, parallel=context)
        pipeline("a cat", "a dog", **SKIPPING)
        return len(pipeline.encoded)

    assert ParallelContext.local(2, run, cfg_degree=2) == [2, 1]
    assert ParallelContext.local(3, run, cfg_degree=3) == [1, 1, 1]


def test_one_branch_on_two_cfg_ranks_runs_and_says_who_idles(pipeline, directory):
    results = on_ranks(directory, 2, "a cat", None, {"cfg_degree": 2}, **CALL, guidance_scale=1.0)
    np.testing.assert_array_equal(results[0].latents, pipeline("a cat", **CALL, guidance_scale=1.0).latents)
    assert "a second one needs guidance_scale above 1" in results[0].notes[0]
