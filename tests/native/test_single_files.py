"""The same model in every layout of files draws the same latents."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file
from single_files import PARTS, TOLD_FLUX, all_in_one, original, prefixed, read_component, write_gguf
from tiny import write_component, write_flux_pipeline, write_json, write_safetensors
from tiny_sd3 import write_sd3_pipeline

from edgedit import ParallelConfig, ParallelContext, Pipeline
from edgedit.errors import CheckpointError
from edgedit.pipelines.parts import PartFiles

CALL = {"prompt": "a red apple", "num_inference_steps": 2, "height": 16, "width": 24, "seed": 3}


def latents(model, parts=None, dtype="auto", **call):
    with Pipeline.from_pretrained(model, dtype, parallel=ParallelConfig(), parts=parts) as pipeline:
        return pipeline(**(CALL | call)).latents


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    """A diffusers directory of values that f16 holds, and what it draws."""
    directory = write_flux_pipeline(
        tmp_path_factory.mktemp("single") / "flux", seed=5, dtype="F16", guidance=True, **TOLD_FLUX,
        scheduler={"shift": 3.0, "use_dynamic_shifting": True},
    )  # fmt: skip
    return directory, latents(directory)


def parts_of(directory, folder, **files):
    """Parts from the directory, but for those given as files."""
    names = {"transformer": "transformer", "vae": "vae", "clip_l": "text_encoder", "t5": "text_encoder_2"}
    paths = {part: directory / component for part, component in names.items()}
    return PartFiles(**(paths | files), tokenizer_dir=directory)


def test_shards_and_variants_draw_the_same(flux, tmp_path):
    directory, expected = flux
    sharded = write_flux_pipeline(
        tmp_path / "sharded", seed=5, dtype="F16", guidance=True, shards=3, **TOLD_FLUX,
        scheduler={"shift": 3.0, "use_dynamic_shifting": True},
    )  # fmt: skip
    np.testing.assert_array_equal(latents(sharded), expected)
    variant = shutil.copytree(directory, tmp_path / "variant")
    (variant / "transformer" / "diffusion_pytorch_model.safetensors").rename(
        variant / "transformer" / "diffusion_pytorch_model.fp16.safetensors"
    )
    np.testing.assert_array_equal(latents(variant), expected)


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model.", "diffusion_model.", "transformer.", "net."])
@pytest.mark.parametrize("spelling", ["original", "diffusers"])
def test_a_transformer_in_one_file_draws_the_same(flux, tmp_path, prefix, spelling):
    directory, expected = flux
    tensors = read_component(directory / "transformer")
    if spelling == "original":
        tensors = original("flux", tensors)
    save_file(prefixed(prefix, tensors), tmp_path / "flux.safetensors")
    parts = PartFiles(transformer=tmp_path / "flux.safetensors")
    np.testing.assert_array_equal(latents(directory, parts), expected)


def test_files_of_all_parts_draw_the_same(flux, tmp_path):
    directory, expected = flux
    files = {}
    for part, component, kind in (
        ("transformer", "transformer", "flux"),
        ("vae", "vae", "autoencoder_kl"),
        ("clip_l", "text_encoder", None),
        ("t5", "text_encoder_2", None),
    ):
        tensors = read_component(directory / component)
        files[part] = tmp_path / f"{part}.safetensors"
        save_file(original(kind, tensors) if kind else tensors, files[part])
    parts = PartFiles(**files, tokenizer_dir=directory)
    np.testing.assert_array_equal(latents(None, parts), expected)
    with_transformer = PartFiles(**{**files, "transformer": None}, tokenizer_dir=directory)
    np.testing.assert_array_equal(latents(files["transformer"], with_transformer), expected)


def test_one_file_of_everything_draws_the_same(flux, tmp_path):
    directory, expected = flux
    tensors = all_in_one(directory) | {"text_encoders.clip_l.logit_scale": np.zeros((), np.float32)}
    save_file(tensors, tmp_path / "all.safetensors")
    model = tmp_path / "all.safetensors"
    with Pipeline.from_pretrained(
        model, parallel=ParallelConfig(), parts=PartFiles(tokenizer_dir=directory)
    ) as pipeline:
        result = pipeline(**CALL)
    np.testing.assert_array_equal(result.latents, expected)
    with Pipeline.from_pretrained(directory, parallel=ParallelConfig()) as pipeline:
        expected_picture = pipeline(**CALL).images[0]
    np.testing.assert_array_equal(np.asarray(result.images[0]), np.asarray(expected_picture))


def test_gguf_draws_the_same_in_the_type_that_it_has(flux, tmp_path):
    directory, expected = flux
    names = {"transformer": "transformer", "vae": "vae", "clip_l": "text_encoder", "t5": "text_encoder_2"}
    files = {}
    for part, component in names.items():
        kind = PARTS[component][0]
        tensors = read_component(directory / component)
        if part != "clip_l":
            tensors = original(kind, tensors, "llama.cpp" if part == "t5" else "original")
        files[part] = write_gguf(tmp_path / f"{part}.gguf", tensors, "F16", kind)
    parts = PartFiles(**files, tokenizer_dir=directory)
    np.testing.assert_array_equal(latents(None, parts, "f32"), expected)
    np.testing.assert_array_equal(latents(None, parts, "auto"), latents(directory, dtype="f16"))


@pytest.mark.parametrize("stored", ["Q8_0", "Q4_0", "Q5_1"])
def test_quantised_weights_are_used_as_they_are(flux, tmp_path, stored):
    directory, expected = flux
    tensors = original("flux", read_component(directory / "transformer"))
    parts = PartFiles(transformer=write_gguf(tmp_path / "flux.gguf", tensors, stored))
    with Pipeline.from_pretrained(directory, "auto", parallel=ParallelConfig(), parts=parts) as pipeline:
        network = dict(pipeline.transformer.network.named_parameters())
        kept = {name: parameter.tensor.dtype for name, parameter in network.items()}
        drawn = pipeline(**CALL).latents
    for name in ("transformer_blocks.0.attn.to_k", "single_transformer_blocks.0.proj_mlp", "norm_out.linear"):
        assert kept[f"{name}.weight"] == stored.lower(), name
    assert pipeline.transformer.compute_dtype == stored.lower()
    error = np.abs(drawn - expected).max() / np.abs(expected).max()
    assert 0 < error < 0.2
    # as f32 the same values, rounded when they were written
    widened = latents(directory, parts, "f32")
    assert np.abs(drawn - widened).max() / np.abs(widened).max() < 0.02


@pytest.fixture(scope="module", params=["medium", "medium 3.5"])
def sd3(tmp_path_factory, request):
    """A diffusers directory whose first encoder projects by the identity, as the published one does, and its tensors
    by the parts of a file."""
    is_new = request.param == "medium 3.5"
    directory = write_sd3_pipeline(
        tmp_path_factory.mktemp("single") / "sd3", seed=2, heads=1, head_dim=64, num_layers=2, with_t5=is_new,
        dual=(0,) if is_new else (), qk_norm="rms_norm" if is_new else None,
        transformer={"joint_attention_dim": 192},
        text_encoder={"hidden_size": 64, "num_attention_heads": 1, "projection_dim": 64},
        text_encoder_2={"hidden_size": 128, "num_attention_heads": 2, "projection_dim": 128},
        vae={"norm_num_groups": 32, "block_out_channels": [32, 64], "scaling_factor": 1.5305, "shift_factor": 0.0609},
    )  # fmt: skip
    small = read_component(directory / "text_encoder")
    small["text_projection.weight"] = np.eye(64, dtype=np.float32)
    write_safetensors(directory / "text_encoder" / "model.safetensors", small)
    tensors = {
        "transformer": original("sd3", read_component(directory / "transformer")),
        "vae": original("autoencoder_kl", read_component(directory / "vae")),
        "clip_l": {key: values for key, values in small.items() if "projection" not in key},
        "clip_g": read_component(directory / "text_encoder_2"),
    }
    if is_new:
        tensors["t5"] = read_component(directory / "text_encoder_3")
    return directory, tensors


GUIDED = {"guidance_scale": 4.0, "height": 16, "width": 16}


def test_sd3_in_one_file_draws_the_same(sd3, tmp_path):
    directory, tensors = sd3
    prefixes = {
        "transformer": "model.diffusion_model.", "vae": "first_stage_model.",
        "clip_l": "text_encoders.clip_l.transformer.", "clip_g": "text_encoders.clip_g.transformer.",
        "t5": "text_encoders.t5xxl.transformer.",
    }  # fmt: skip
    everything = {}
    for part, own in tensors.items():
        everything |= prefixed(prefixes[part], own)
    save_file(everything, tmp_path / "sd3.safetensors")
    expected = latents(directory, **GUIDED)
    drawn = latents(tmp_path / "sd3.safetensors", PartFiles(tokenizer_dir=directory), **GUIDED)
    np.testing.assert_array_equal(drawn, expected)


def test_sd3_in_a_file_a_part_draws_the_same(sd3, tmp_path):
    directory, tensors = sd3
    tensors = tensors | {"clip_g": original("clip", tensors["clip_g"], "open_clip")}
    for part, own in tensors.items():
        save_file({key: np.ascontiguousarray(values) for key, values in own.items()}, tmp_path / f"{part}.safetensors")
    files = {part: tmp_path / f"{part}.safetensors" for part in tensors}
    parts = PartFiles(**files, tokenizer_dir=directory)
    np.testing.assert_array_equal(latents(None, parts, **GUIDED), latents(directory, **GUIDED))


def test_an_sd3_transformer_below_any_prefix_draws_the_same(sd3, tmp_path):
    directory, tensors = sd3
    expected = latents(directory, **GUIDED)
    for prefix in ("model.diffusion_model.", "diffusion_model.", "transformer.", "net."):
        save_file(prefixed(prefix, tensors["transformer"]), tmp_path / "sd3.safetensors")
        drawn = latents(directory, PartFiles(transformer=tmp_path / "sd3.safetensors"), **GUIDED)
        np.testing.assert_array_equal(drawn, expected, err_msg=prefix)


def test_an_sd3_transformer_in_shards_and_in_gguf_draws_the_same(sd3, tmp_path):
    """The values are those that f16 holds, so that both types of file have the same."""
    directory, _ = sd3
    halves = {key: values.astype(np.float16).astype(np.float32)
              for key, values in read_component(directory / "transformer").items()}  # fmt: skip
    config = json.loads((directory / "transformer" / "config.json").read_text())
    for name, shards in {"one": 1, "three": 3}.items():
        write_component(tmp_path / name, config, halves, "diffusion_pytorch_model", "F16", shards)
    assert len(list((tmp_path / "three").glob("*.safetensors"))) == 3
    file = write_gguf(tmp_path / "sd3.gguf", original("sd3", halves), "F16", "sd3")

    def drawn(transformer, dtype="f32"):
        return latents(directory, PartFiles(transformer=transformer), dtype, **GUIDED)

    expected = drawn(tmp_path / "one")
    np.testing.assert_array_equal(drawn(tmp_path / "three"), expected)
    np.testing.assert_array_equal(drawn(file), expected)
    with Pipeline.from_pretrained(directory, parallel=ParallelConfig(), parts=PartFiles(transformer=file)) as pipeline:
        network = dict(pipeline.transformer.network.named_parameters())
        assert network["transformer_blocks.0.attn.to_k.weight"].tensor.dtype == "f16"


def test_what_tensors_do_not_tell_comes_from_a_config_beside_them(tmp_path):
    directory = write_flux_pipeline(tmp_path / "flux", heads=2, head_dim=16, num_layers=1, num_single_layers=1)
    expected = latents(directory)
    folder = tmp_path / "file"
    folder.mkdir()
    save_file(original("flux", read_component(directory / "transformer")), folder / "flux.safetensors")
    parts = parts_of(directory, folder, transformer=folder / "flux.safetensors")
    with pytest.raises(CheckpointError, match=r"do not tell axes_dims_rope for heads of 16 channels"):
        latents(None, parts)
    shutil.copy(directory / "transformer" / "config.json", folder)
    np.testing.assert_array_equal(latents(None, parts), expected)
    write_json(folder / "config.json", {"_class_name": "FluxTransformer2DModel", "num_layers": 7})
    with pytest.raises(CheckpointError, match="axes_dims_rope"):
        latents(None, parts)


def test_parts_go_into_every_pipeline_of_their_family(flux, tmp_path):
    directory, expected = flux
    other = shutil.copytree(directory, tmp_path / "other")
    write_json(other / "model_index.json", json.loads((other / "model_index.json").read_text())
               | {"_class_name": "FluxImg2ImgPipeline"})  # fmt: skip
    shutil.rmtree(other / "transformer")
    save_file(original("flux", read_component(directory / "transformer")), tmp_path / "flux.safetensors")
    np.testing.assert_array_equal(latents(other, PartFiles(transformer=tmp_path / "flux.safetensors")), expected)


def test_what_does_not_fit_is_named(flux, tmp_path):
    directory, _ = flux
    tensors = original("flux", read_component(directory / "transformer"))
    file = tmp_path / "flux.safetensors"

    def refused(changed, match, parts=None):
        save_file(changed, file)
        with pytest.raises(ValueError, match=match):
            latents(directory if parts is None else None, parts or PartFiles(transformer=file))

    refused({"foo.weight": np.zeros(1, np.float32)}, r"no network that is known.*foo\.weight")
    refused(tensors | {"double_blocks.0.odd.weight": np.zeros(1, np.float32)}, r"1 unknown: double_blocks\.0\.odd")
    less = {key: values for key, values in tensors.items() if "txt_mlp.2.weight" not in key}
    refused(less, r"1 missing: transformer_blocks\.0\.ff_context\.net\.2\.weight")
    stray = prefixed("model.diffusion_model.", tensors) | {"elsewhere.weight": np.zeros(1, np.float32)}
    refused(stray, r"1 tensors belong to no network: elsewhere\.weight")
    cut = tensors | {"double_blocks.0.img_attn.qkv.weight": np.zeros((128, 128), np.float32)}
    refused(cut, r"double_blocks\.0\.img_attn\.qkv\.weight.*3 equal shares")
    refused(tensors, r"needs vae \(--vae\), clip_l \(--clip-l\), t5 \(--t5\)", PartFiles(transformer=file))
    every = parts_of(directory, tmp_path, transformer=file)
    refused(tensors, "give --tokenizer-dir", PartFiles(**every.networks()))
    refused(tensors, "but holds transformer", PartFiles(**{**every.networks(), "vae": file}))
    with pytest.raises(ValueError, match="has no clip_g"):
        latents(directory, PartFiles(clip_g=file))
    with pytest.raises(ValueError, match="no transformer; give one"):
        latents(None, PartFiles(vae=directory / "vae"))


@pytest.mark.parametrize("layout", [{"ulysses_degree": 2}, {"cfg_degree": 2, "ulysses_degree": 2}])
def test_ranks_draw_what_one_draws_with_weights_as_stored(tmp_path, layout):
    directory = write_flux_pipeline(tmp_path / "flux", seed=6, **(TOLD_FLUX | {"heads": 2}))
    file = write_gguf(tmp_path / "flux.gguf", original("flux", read_component(directory / "transformer")), "Q8_0")
    guided = CALL | {"negative_prompt": "blue", "true_cfg_scale": 2.0}
    parts = PartFiles(transformer=file)
    expected = latents(directory, parts, **guided)

    def run(context):
        with Pipeline.from_pretrained(directory, "auto", parallel=context, parts=parts) as pipeline:
            kept = {p.tensor.dtype for _, p in pipeline.transformer.network.named_parameters() if p.role == "linear"}
            return pipeline(**guided).latents, kept

    for drawn, kept in ParallelContext.local(math.prod(layout.values()), run, **layout):
        assert "q8_0" in kept
        assert np.abs(drawn - expected).max() <= 1e-4 * np.abs(expected).max()
