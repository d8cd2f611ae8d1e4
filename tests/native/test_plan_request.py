"""`edgedit plan` of requests with a picture, and of guidance with three branches: what generate does is foretold."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from tiny_sd3 import write_sd3_pipeline

from edgedit import presets
from edgedit.cli import main
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# pictures


@pytest.mark.parametrize(
    ("words", "reference"),
    [
        ([], 0),
        (["--image-size", "1000x1000"], 64 * 64),
        (["--image-size", "1920x1080"], 87 * 47),
        (["--image-size", "800x610", "--keep-image-size"], 50 * 38),
        (["--image-size", "800x610", "--image-as", "start"], 0),
    ],
)
def test_tokens_of_a_reference_are_read_beside_those_of_the_picture(capsys, words, reference):
    report = plan(capsys, "--model", "flux-kontext-dev", "--ulysses", "4", *words)
    assert report["image_tokens"] == 4096 + reference
    tokens = 4096 + 512 + reference
    # q, k and v of a quarter of the tokens, three quarters of the heads; heads and tokens divide by four up to one
    first = report["collectives"][0]
    assert first["bytes_sent"] == pytest.approx(3 * 4 * 24 * 128 * tokens / 4 * 3 / 4, rel=0.001)
    # what comes out is gathered of all tokens
    assert report["collectives"][-1]["count"] == (4096 + reference) * 64


def test_fill_reads_wider_tokens(capsys):
    dev, fill = (plan(capsys, "--model", f"flux-{name}", "--steps", "2") for name in ("dev", "fill-dev"))
    assert fill["image_tokens"] == dev["image_tokens"] == 4096
    added = (384 - 64) * 3072
    assert fill["flops_per_step"][0] - dev["flops_per_step"][0] == 2 * 4096 * added
    weights = [sum(report["memory"][0]["weights"].values()) for report in (fill, dev)]
    assert weights[0] - weights[1] == 4 * added


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["--model", "flux-dev", "--strength", "0.6"], 17),
        (["--model", "flux-dev", "--image-size", "640x480"], 17),
        (["--model", "sd3-medium", "--strength", "0.25"], 7),
        (["--model", "flux-fill-dev", "--strength", "0.5"], 14),
        (["--model", "flux-fill-dev"], 28),
    ],
)
def test_strength_takes_steps_away(capsys, words, steps):
    report = plan(capsys, *words, "--cfg", "2", "--true-cfg-scale", "7" if words[1] == "sd3-medium" else "3")
    assert report["steps"] == steps
    assert report["bytes_sent"] == [steps * nbytes for nbytes in report["bytes_sent_per_step"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "flux-dev", "--strength", "0"], "strength is 0.0; it must be above 0 and at most 1"),
        (["--model", "flux-kontext-dev", "--strength", "0.5"], "strength is given without image"),
        (["--model", "flux-kontext-dev", "--image-size", "64x64", "--strength", "0.5"], "takes no strength"),
        (["--model", "flux-kontext-dev", "--image-size", "640"], "--image-size '640': write width x height"),
        (["--model", "flux-kontext-dev", "--image-size", "0x5"], "--image-size '0x5': write width x height"),
        (["--model", "flux-kontext-dev", "--image-size", "900x9"], "each side must have at least 16"),
        (["--model", "flux-dev", "--skip-guidance-layers", "7"], "legal layers: none here"),
        (["--model", "sd3-medium", "--skip-guidance-layers", "24"], "legal layers: 0 to 23"),
    ],
)
def test_bad_input_is_refused_with_its_values(capsys, words, message):
    assert main(["plan", *words]) == 2
    assert message in capsys.readouterr().err


def test_presets_differ_where_the_published_models_do():
    dev, kontext, fill = (presets.read(f"flux-{name}") for name in ("dev", "kontext-dev", "fill-dev"))
    assert dev["transformer"] == kontext["transformer"]
    assert {
        key for key in fill["transformer"] if fill["transformer"][key] != dev["transformer"].get(key)
    } == {
        "in_channels",
        "out_channels",
    }


# three branches

SKIPPING = ["--skip-guidance-layers", "7", "8", "9"]


def test_each_rank_runs_its_branches(capsys):
    """Two ranks share three branches, of three each has one, of four the last repeats the first."""
    model = ["--model", "sd3.5-medium", *SKIPPING]
    alone = plan(capsys, *model)
    whole, without = plan(capsys, *model, "--cfg", "3")["flops_per_step"][1:]
    assert 0.8 * whole < without < 0.9 * whole  # 21 of 24 blocks
    assert alone["flops_per_step"] == [2 * whole + without]
    assert (alone["passes_per_step"], alone["bytes_sent"]) == (3, [0])
    assert plan(capsys, *model, "--cfg", "2")["flops_per_step"] == [whole + without, whole]
    assert plan(capsys, *model, "--cfg", "4")["flops_per_step"] == [whole, whole, without, whole]


def test_the_third_branch_runs_in_some_steps_only(capsys):
    report = plan(capsys, "--model", "sd3.5-medium", "--cfg", "3", *SKIPPING)
    prediction = 4 * 16 * 128 * 128
    assert report["bytes_sent_per_step"] == [2 * prediction] * 3
    assert report["bytes_sent"] == [28 * 2 * prediction] * 2 + [5 * 2 * prediction]
    assert "the third branch runs in 5 of 28 steps" in report["notes"]


def test_graphs_with_and_without_the_layers_stay_allocated(capsys):
    three, two = (plan(capsys, "--model", "sd3-medium", *words)["memory"][0] for words in (SKIPPING, []))
    assert three["weights"] == two["weights"]
    assert three["compute"] > 1.9 * two["compute"]
    assert three["ahead"] == two["ahead"]  # two texts, whatever is left out


@pytest.mark.parametrize(
    ("degrees", "pictures"),
    [
        ({"cfg": 3}, 1),
        ({"cfg": 2, "ulysses": 2}, 1),
        ({"ulysses": 2}, 2),
        ({"dp": 2, "cfg": 2}, 3),
        ({"dp": 2, "ulysses": 2}, 1),
    ],
    ids=str,
)
def test_bytes_that_generate_sends_are_those_of_plan(capsys, tmp_path, degrees, pictures):
    """Replicas draw two of three pictures and one, or one and none."""
    directory = write_sd3_pipeline(tmp_path / "model", with_t5=False, qk_norm="rms_norm")
    options = {f"{axis}_degree": degree for axis, degree in degrees.items()}
    world_size = 1
    for degree in degrees.values():
        world_size *= degree

    def run(context):
        with Pipeline.from_pretrained(directory, threads=1, parallel=context) as pipeline:
            return pipeline(
                "a cat", num_inference_steps=5, height=16, width=24, seed=1, max_sequence_length=8,
                skip_guidance_layers=[1], skip_layer_guidance_stop=0.5, image=Image.new("RGB", (24, 16), "red"),
                strength=0.8, num_images_per_prompt=pictures,
            )  # fmt: skip

    sent = ParallelContext.local(world_size, run, **options)[0].bytes_sent
    flags = [word for axis, degree in degrees.items() for word in (f"--{axis}", str(degree))]
    words = [
        "--steps",
        "5",
        "--height",
        "16",
        "--width",
        "24",
        "--max-sequence-length",
        "8",
        "--strength",
        "0.8",
    ]
    words += ["--num-images", str(pictures)]
    skipping = ["--skip-guidance-layers", "1", "--skip-layer-guidance-stop", "0.5"]
    report = plan(capsys, "--model", str(directory), *flags, *words, *skipping)
    assert report["bytes_sent"] == sent
    said = [note for note in report["notes"] if note.startswith("dp 2")]
    expected = ["dp 2: the request is of one picture, ranks 2, 3 have none"]
    assert said == (expected if degrees.get("dp", 1) > pictures else [])
    assert sum(sent) > 0
