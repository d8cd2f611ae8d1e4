"""``edgedit inspect`` of single files: what they hold, of what kind it is, and what a pipeline needs besides."""

import json
import shutil

import numpy as np
import pytest
from lora_files import random_factors, write_lora
from safetensors.numpy import load_file, save_file
from single_files import all_in_one, original, prefixed, read_component, write_gguf
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_transformer

from edgedit import cli


def inspect(capsys, *words):
    status = cli.main(["inspect", *map(str, words), "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    return write_flux_pipeline(tmp_path_factory.mktemp("inspect") / "flux", guidance=True)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_a_transformer_in_a_file(tmp_path, capsys, flux, kind):
    tensors = original("flux", read_component(flux / "transformer"))
    path = tmp_path / f"a.{kind}"
    if kind == "gguf":
        write_gguf(path, tensors, "Q8_0")
    else:
        save_file(prefixed("model.diffusion_model.", tensors), path)
    (tmp_path / "config.json").write_text((flux / "transformer" / "config.json").read_text())
    status, report = inspect(capsys, path, "--tensors")
    (part,) = report["components"]
    assert (status, report["problems"]) == (0, [])
    assert (part["class"], part["architecture"], part["spelling"]) == ("FluxTransformer2DModel", "flux", "original")
    assert part["prefix"] == ("" if kind == "gguf" else "model.diffusion_model.")
    wanted = {"num_layers": 2, "num_single_layers": 2, "num_attention_heads": 4, "guidance_embeds": True}
    assert wanted.items() <= part["config"].items()
    assert part["tensors"] == len(part["tensor_list"]) == len(tensors)
    assert part["parameters"] == sum(values.size for values in tensors.values())
    matrices = sum(x.size for x in tensors.values() if x.ndim == 2 and x.shape[1] % 32 == 0)
    others = sum(x.size for x in tensors.values()) - matrices
    blocks = matrices * 34 // 32 + others * 4
    assert part["nbytes"] == (blocks if kind == "gguf" else 4 * part["parameters"])
    assert set(part["dtypes"]) == ({"Q8_0", "F32"} if kind == "gguf" else {"F32"})
    assert report["needs"] == ["--vae", "--clip-l", "--t5", "--tokenizer-dir"]


def test_a_whole_pipeline_in_a_file(tmp_path, capsys, flux):
    save_file(all_in_one(flux), tmp_path / "all.safetensors")
    status, report = inspect(capsys, tmp_path / "all.safetensors")
    parts = {part["name"]: part for part in report["components"]}
    assert set(parts) == {"transformer", "vae", "clip_l", "t5"}
    assert parts["clip_l"]["class"] == "CLIPTextModel"
    assert report["needs"] == ["--tokenizer-dir"]
    # the split of a head among axes cannot be told from tensors alone
    assert status == 1
    assert any("axes_dims_rope" in problem for problem in report["problems"])
    assert cli.main(["inspect", str(tmp_path / "all.safetensors")]) == 1
    text = capsys.readouterr().out
    for word in ("t5: t5, 'transformers' names", "num_layers=2", "needs besides: --tokenizer-dir", "AutoencoderKL"):
        assert word in text


def test_what_is_missing_and_what_belongs_nowhere_is_listed(tmp_path, capsys):
    write_sd3_transformer(tmp_path / "sd3")
    file = tmp_path / "sd3" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    del tensors["transformer_blocks.1.attn.to_q.bias"]
    tensors["transformer_blocks.0.extra.weight"] = np.zeros((2, 2), np.float32)
    tensors["proj_out.bias"] = np.zeros(3, np.float32)
    save_file(tensors, file)
    status, report = inspect(capsys, tmp_path / "sd3")
    (part,) = report["components"]
    assert status == 1
    assert part["missing"] == ["transformer_blocks.1.attn.to_q.bias"]
    assert part["unknown"] == ["transformer_blocks.0.extra.weight"]
    assert part["misshapen"] == ["proj_out.bias is [3] for [16]"]
    (problem,) = report["problems"]
    assert "1 missing: transformer_blocks.1.attn.to_q.bias" in problem


def test_a_lora_says_what_it_is(tmp_path, capsys, flux):
    shapes = {key: values.shape for key, values in read_component(flux / "transformer").items()}
    path = tmp_path / "lora.safetensors"
    write_lora(path, random_factors(shapes, ["x_embedder", "proj_out"], rank=4), alpha=2.0)
    status, report = inspect(capsys, path)
    (part,) = report["components"]
    assert status == 0
    assert (part["class"], part["modules"], part["ranks"], part["scales"]) == ("LoRA", 2, [4], [0.5])
    assert cli.main(["inspect", str(path)]) == 0
    assert "LoRA for 2 modules, ranks 4, scales 0.5" in capsys.readouterr().out


def test_tensors_of_no_known_network_are_a_problem_and_still_counted(tmp_path, capsys):
    save_file({"some.weight": np.zeros((3, 5), np.float16)}, tmp_path / "a.safetensors")
    status, report = inspect(capsys, tmp_path / "a.safetensors")
    assert status == 1
    assert (report["parameters"], report["nbytes"]) == (15, 30)
    assert "no network that is known" in report["problems"][0]


def test_gguf_in_the_directory_of_a_component(tmp_path, capsys, flux):
    directory = shutil.copytree(flux, tmp_path / "flux")
    transformer = directory / "transformer"
    (transformer / "diffusion_pytorch_model.safetensors").unlink()
    write_gguf(transformer / "a.gguf", original("flux", read_component(flux / "transformer")), "Q8_0")
    status, report = inspect(capsys, directory)
    assert status == 0, report["problems"]
    part = next(part for part in report["components"] if part["name"] == "transformer")
    assert (part["spelling"], part["files"], part["missing"]) == ("original", ["a.gguf"], [])
    shutil.copy(transformer / "a.gguf", transformer / "b.gguf")
    status, report = inspect(capsys, directory)
    assert status == 1
    assert "transformer: several GGUF files: a.gguf, b.gguf" in report["problems"][0]


def test_two_networks_of_one_kind_are_a_problem(tmp_path, capsys, flux):
    own = read_component(flux / "transformer")
    save_file(own | prefixed("net.", own), tmp_path / "a.safetensors")
    status, report = inspect(capsys, tmp_path / "a.safetensors")
    assert status == 1
    assert "a.safetensors: holds more than one transformer" in report["problems"][0]


def test_a_damaged_gguf_file_is_a_problem_not_a_crash(tmp_path, capsys, flux):
    path = write_gguf(tmp_path / "a.gguf", original("flux", read_component(flux / "transformer")))
    path.write_bytes(path.read_bytes()[:5000])
    status, report = inspect(capsys, path)
    assert status == 1
    assert "a.gguf" in report["problems"][0]
