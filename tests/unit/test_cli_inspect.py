"""``edgedit inspect``: what it finds, and that it names what is wrong."""

import json

import pytest
from tiny import write_flux_pipeline

from edgedit import cli


def inspect(capsys, *words):
    status = cli.main(["inspect", *map(str, words), "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture
def model(tmp_path):
    return write_flux_pipeline(tmp_path / "flux", heads=3, dtype="BF16", shards=2)


def test_the_embedded_model_is_described(capsys):
    status, report = inspect(capsys)
    assert status == 0
    assert (report["family"], report["supported"], report["default_size_px"]) == ("FluxPipeline", True, 64)
    parts = {part["name"]: part for part in report["components"]}
    assert parts["transformer"]["dtypes"] == {"F16": 136}
    assert parts["transformer"]["class"] == "FluxTransformer2DModel"
    assert report["parameters"] == sum(part.get("parameters", 0) for part in parts.values())
    assert 6_900_000 < report["parameters"] < 7_100_000


def test_shards_and_types_are_counted(capsys, model):
    status, report = inspect(capsys, model)
    transformer = next(part for part in report["components"] if part["name"] == "transformer")
    assert status == 0
    assert len(transformer["files"]) == 2
    assert list(transformer["dtypes"]) == ["BF16"]
    assert transformer["nbytes"] == 2 * transformer["parameters"]


def test_a_component_and_a_file_can_be_inspected_alone(capsys, model):
    for path in (model / "vae", model / "vae" / "diffusion_pytorch_model.safetensors"):
        status, report = inspect(capsys, path, "--tensors")
        (part,) = report["components"]
        assert status == 0
        assert {"name": "decoder.conv_out.bias", "dtype": "BF16", "shape": [3]} in part["tensor_list"]


def test_a_missing_shard_is_named(capsys, model):
    shard = next((model / "transformer").glob("*-00002-of-00002.safetensors"))
    shard.unlink()
    status, report = inspect(capsys, model)
    assert status == 1
    assert any(shard.name in problem for problem in report["problems"])


def test_a_missing_component_is_named(capsys, model):
    for file in (model / "vae").iterdir():
        file.unlink()
    (model / "vae").rmdir()
    status, report = inspect(capsys, model)
    assert status == 1
    assert any("vae" in problem and "missing" in problem for problem in report["problems"])


def test_a_truncated_file_is_a_problem_not_a_crash(capsys, model):
    file = model / "vae" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    status, report = inspect(capsys, model)
    assert status == 1
    assert any(file.name in problem for problem in report["problems"])


def test_an_unknown_family_is_shown_but_not_supported(capsys, model):
    index = model / "model_index.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "_class_name": "PaintPipeline"}))
    status, report = inspect(capsys, model)
    assert status == 1
    assert (report["family"], report["supported"]) == ("PaintPipeline", False)
    assert "supported: FluxPipeline" in report["problems"][-1]


def test_the_text_names_every_component(capsys, model):
    assert cli.main(["inspect", str(model)]) == 0
    text = capsys.readouterr().out
    for word in ("transformer", "FluxTransformer2DModel", "BF16", "tokenizer_2", "multiples of 4 px"):
        assert word in text


def test_a_path_that_does_not_exist_is_bad_input(capsys, tmp_path):
    assert cli.main(["inspect", str(tmp_path / "nowhere")]) == cli.BAD_INPUT
    assert "does not exist" in capsys.readouterr().err
