"""A batch over replicas, as ranks in threads: what one rank draws, in order."""

import json

import numpy as np
import pytest
from row_kernels import ROW_KERNELS
from tiny import write_flux_pipeline

from edgedit import cli
from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline

PROMPTS = ["a cat", "two red dogs", "a green hat"]
CALL = {"num_inference_steps": 2, "height": 12, "width": 20, "seed": 3, "true_cfg_scale": 3.0}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_flux_pipeline(
        tmp_path_factory.mktemp("model") / "flux", heads=3, t5_length=9, num_layers=1, num_single_layers=1
    )


@pytest.fixture(scope="module")
def alone(directory):
    with Pipeline.from_pretrained(directory, threads=1, parallel=ParallelConfig(kernels=ROW_KERNELS)) as pipeline:
        yield pipeline


def on_ranks(directory, size, prompts, degrees, **call):
    def run(context):
        return Pipeline.from_pretrained(directory, threads=1, parallel=context)(prompts, "a dog", **call)

    return ParallelContext.local(size, run, **degrees, kernels=ROW_KERNELS)


@pytest.mark.parametrize(
    ("degrees", "idle"),
    [
        ({"dp_degree": 2}, None),
        ({"dp_degree": 4}, "ranks 3 have none"),
        ({"dp_degree": 2, "cfg_degree": 2}, None),
        ({"dp_degree": 4, "cfg_degree": 2}, "ranks 6, 7 have none"),
    ],
)
def test_replicas_draw_what_one_rank_draws(directory, alone, degrees, idle):
    expected = alone(PROMPTS, "a dog", **CALL)
    size = int(np.prod(list(degrees.values())))
    results = on_ranks(directory, size, PROMPTS, degrees, **CALL)
    for result in results:
        np.testing.assert_array_equal(result.latents, expected.latents)
        assert [idle in note for note in result.notes] == ([] if idle is None else [True])
    for picture, wanted in zip(results[0].images, expected.images, strict=True):
        np.testing.assert_array_equal(np.asarray(picture), np.asarray(wanted))
    assert all(result.images is None for result in results[1:])


def test_tokens_are_shared_inside_a_replica(directory, alone):
    expected = alone(PROMPTS, "a dog", **CALL).latents
    results = on_ranks(directory, 4, PROMPTS, {"dp_degree": 2, "ulysses_degree": 2}, **CALL)
    for result in results:
        np.testing.assert_array_equal(result.latents, results[0].latents)
        np.testing.assert_allclose(result.latents, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    # replica 0 has two of the three pictures, so its ranks send twice as much
    sent = results[0].bytes_sent
    assert sent[0] == 2 * sent[2] > 0


def test_pictures_of_one_prompt_are_spread_too(directory, alone):
    expected = alone("a cat", "a dog", **CALL, num_images_per_prompt=3).latents
    assert np.abs(expected[0] - expected[2]).max() > 1e-3
    results = on_ranks(directory, 2, "a cat", {"dp_degree": 2}, **CALL, num_images_per_prompt=3)
    np.testing.assert_array_equal(results[1].latents, expected)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_rounds_of_a_replica_change_nothing(directory, alone, batch_size):
    expected = alone(PROMPTS, "a dog", **CALL).latents
    np.testing.assert_array_equal(alone(PROMPTS, "a dog", **CALL, batch_size=batch_size).latents, expected)
    results = on_ranks(directory, 2, PROMPTS, {"dp_degree": 2}, **CALL, batch_size=batch_size)
    np.testing.assert_array_equal(results[0].latents, expected)
    with pytest.raises(ValueError, match="batch_size is 0; at least 1 is needed"):
        alone(PROMPTS, **CALL, batch_size=0)


def test_a_replica_encodes_its_own_prompts_and_rank_0_says_what_is_cut(directory):
    prompts = ["a cat", "one two three four five six seven eight nine ten"]

    def run(context):
        pipeline = Pipeline.from_pretrained(directory, threads=1, parallel=context)
        pipeline(prompts, **CALL)
        return len(pipeline.encoded)

    with pytest.warns(UserWarning) as said:
        assert ParallelContext.local(2, run, dp_degree=2) == [1, 1]
    limits = [str(warning.message).split("cut to ")[1].split(";")[0] for warning in said]
    assert sorted(limits) == ["16", "9"]


def test_latents_that_differ_inside_a_replica_end_the_run(directory):
    def run(context):
        def disturb(step, num_steps, latents):
            latents += np.float32(context.rank == 3)

        pipeline = Pipeline.from_pretrained(directory, threads=1, parallel=context)
        return pipeline(PROMPTS, "a dog", **CALL, callback=disturb)

    words = (
        r"the ranks disagree on latents: line 4 is 'replica 1, step 2: .* on rank 0 and 'replica 1, step 2: "
    )
    with pytest.raises(EdgeditError, match=words):
        ParallelContext.local(4, run, dp_degree=2, cfg_degree=2)


def test_prompts_come_from_a_file(directory, tmp_path, capsys):
    file = tmp_path / "prompts.txt"
    file.write_text("two red dogs\n\n  a green hat \n", encoding="utf-8")
    command = [
        "generate",
        "--model",
        str(directory),
        "--steps",
        "1",
        "--seed",
        "3",
        "--width",
        "20",
        "--height",
        "12",
    ]
    files = {
        "file": ["-p", "a cat", "--prompts-file", str(file)],
        "flags": [w for p in PROMPTS for w in ("-p", p)],
    }
    latents = {}
    for name, prompts in files.items():
        out = [str(tmp_path / f"{name}.png"), "--latents-out", str(tmp_path / f"{name}.npy")]
        assert cli.main([*command, *prompts, "--batch-size", "2", "--json", "-o", *out]) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert len(report["outputs"]) == 3
        latents[name] = np.load(tmp_path / f"{name}.npy")
    np.testing.assert_array_equal(latents["file"], latents["flags"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"\n \n", "holds no prompt; write one a line"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_prompts_file_that_cannot_work_is_refused(tmp_path, capsys, content, words):
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    assert cli.main(["generate", "--prompts-file", str(file)]) == cli.BAD_INPUT
    assert words in capsys.readouterr().err
