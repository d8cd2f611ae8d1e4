"""``edgedit convert``: what it writes is what was read, in the names and types asked for, or nothing at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import tracemalloc
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from lora_files import added, random_factors, write_lora
from safetensors.numpy import load_file, save_file
from single_files import TOLD_FLUX, original, read_component, write_typed
from tiny import EMBEDDED, write_flux_pipeline, write_flux_transformer, write_t5
from tiny_sd3 import write_sd3_pipeline

from edgedit import cli
from edgedit.errors import CheckpointError
from edgedit.models.autoencoder_kl import AutoencoderKL
from edgedit.models.clip import CLIPTextModel, CLIPTextModelWithProjection
from edgedit.models.flux import FluxTransformer
from edgedit.models.sd3 import SD3Transformer
from edgedit.models.t5 import T5EncoderModel
from edgedit.pipelines.loras import Loras
from edgedit.weights import convert
from edgedit.weights.export import FILE_TYPES
from edgedit.weights.gguf import GgufFile
from edgedit.weights.quantisation import choose_type


def converted(capsys, *words):
    """The report of a conversion that succeeds."""
    status = cli.main(["convert", *map(str, words), "--json", "--quiet"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return json.loads(captured.out)


def refused(capsys, status, *words):
    assert cli.main(["convert", *map(str, words), "--quiet"]) == status
    return capsys.readouterr().err


def tensors_of(path):
    """What another reader of the format finds, as f32 in numpy's order of axes, and the types."""
    reader = gguf.GGUFReader(path)
    values = {t.name: dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]) for t in reader.tensors}
    return values, {t.name: t.tensor_type.name for t in reader.tensors}


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    """Wide enough for blocks of 256."""
    directory = tmp_path_factory.mktemp("convert")
    sizes = {"joint_attention_dim": 256, "num_layers": 1, "num_single_layers": 1}
    write_flux_transformer(
        directory, num_attention_heads=16, attention_head_dim=16, guidance_embeds=True, **sizes
    )
    return directory


def outputs(model, seed=0):
    """Of a tiny network of any kind, for random inputs."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    config = model.config
    if isinstance(model, AutoencoderKL):
        return model.decode(draw(1, config.latent_channels, 4, 6))
    if isinstance(model, T5EncoderModel | CLIPTextModel):
        result = model(rng.integers(2, 900, (2, 7)))
        return result if isinstance(result, np.ndarray) else np.concatenate([part.ravel() for part in result])
    text = {
        "encoder_hidden_states": draw(1, 5, config.joint_attention_dim),
        "pooled_projections": draw(1, config.pooled_projection_dim),
        "timestep": np.float32([0.5]),
    }
    if isinstance(model, SD3Transformer):
        return model(draw(1, config.in_channels, 4, 6), **text)
    ids = {
        "img_ids": np.stack([np.zeros(6), *np.indices((2, 3)).reshape(2, -1)], 1),
        "txt_ids": np.zeros((5, 3)),
    }
    guidance = {"guidance": np.float32([3.5])} if config.guidance_embeds else {}
    return model(draw(1, 6, config.in_channels), **text, **ids, **guidance)


MODELS = {
    "flux": {
        "transformer": FluxTransformer, "text_encoder": CLIPTextModel, "text_encoder_2": T5EncoderModel,
        "vae": AutoencoderKL,
    },
    "sd3": {
        "transformer": SD3Transformer, "text_encoder_2": CLIPTextModelWithProjection, "vae": AutoencoderKL,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", MODELS)
def test_what_is_stored_comes_back_bit_by_bit(tmp_path, capsys, family):
    write = {"flux": write_flux_pipeline, "sd3": write_sd3_pipeline}[family]
    directory = write(
        tmp_path / "model", **({"dual": (0,), "qk_norm": "rms_norm"} if family == "sd3" else {})
    )
    for part, model in MODELS[family].items():
        path = tmp_path / f"{part}.gguf"
        report = converted(capsys, directory, path, "--part", part, "--type", "stored")
        assert set(report["types"]) == {"f32"}
        assert report["nbytes"] == path.stat().st_size
        np.testing.assert_array_equal(
            outputs(model.from_pretrained(path)), outputs(model.from_pretrained(directory / part)), part
        )


def test_a_pipeline_of_converted_parts_draws_the_same(tmp_path, capsys):
    directory = write_flux_pipeline(tmp_path / "model", **TOLD_FLUX)
    parts = {"transformer": "transformer", "vae": "vae", "clip_l": "text_encoder", "t5": "text_encoder_2"}
    words = ["--tokenizer-dir", directory]
    for part, component in parts.items():
        path = tmp_path / f"{part}.gguf"
        converted(capsys, directory, path, "--part", component, "--type", "stored")
        words += [f"--{part.replace('_', '-')}", path]
    latents = []
    for source in (words, ["--model", directory]):
        out = ["-o", tmp_path / "a.png", "--latents-out", tmp_path / "a.npy", "--quiet"]
        assert cli.main(["generate", "-p", "a cat", "-s", "1", "--steps", "2", *map(str, [*source, *out])]) == 0
        latents.append(np.load(tmp_path / "a.npy"))
    np.testing.assert_array_equal(*latents)


def test_the_embedded_model_is_converted_by_its_name(tmp_path, capsys):
    report = converted(capsys, "embedded", tmp_path / "a.gguf", "--part", "text_encoder", "--type", "stored")
    assert (report["part"], report["architecture"]) == ("text_encoder", "clip")
    values, _ = tensors_of(tmp_path / "a.gguf")
    name = "text_model.final_layer_norm.weight"
    expected = load_file(EMBEDDED / "text_encoder" / "model.safetensors")
    np.testing.assert_array_equal(values[name], expected[name.removeprefix("text_model.")].astype(np.float32))


def test_half_precision_comes_back_from_f16(tmp_path, capsys):
    write_flux_transformer(tmp_path / "flux", dtype="F16")
    converted(capsys, tmp_path / "flux", tmp_path / "a.gguf", "--type", "f16")
    models = [FluxTransformer.from_pretrained(tmp_path / name, "f32") for name in ("flux", "a.gguf")]
    np.testing.assert_array_equal(*map(outputs, models))


def test_other_readers_find_the_names_and_values_of_the_original_network(tmp_path, capsys, flux):
    path = tmp_path / "a.gguf"
    converted(capsys, flux, path, "--type", "f32")
    values, types = tensors_of(path)
    own = load_file(flux / "diffusion_pytorch_model.safetensors")
    single, double = "single_transformer_blocks.0", "transformer_blocks.0"
    linear1 = [own[f"{single}.{name}.weight"] for name in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")]
    qkv = [own[f"{double}.attn.add_{x}_proj.bias"] for x in "qkv"]
    expected = {
        "img_in.weight": own["x_embedder.weight"],
        "guidance_in.out_layer.bias": own["time_text_embed.guidance_embedder.linear_2.bias"],
        "single_blocks.0.linear1.weight": np.concatenate(linear1),
        "double_blocks.0.txt_attn.qkv.bias": np.concatenate(qkv),
        "double_blocks.0.img_attn.norm.key_norm.scale": own[f"{double}.attn.norm_k.weight"],
        "final_layer.adaLN_modulation.1.weight": np.roll(own["norm_out.linear.weight"], 256, axis=0),
        "final_layer.linear.weight": own["proj_out.weight"],
    }
    for name, wanted in expected.items():
        np.testing.assert_array_equal(values[name], wanted, name)
    assert sum(array.size for array in values.values()) == sum(array.size for array in own.values())
    assert set(types.values()) == {"F32"}
    fields = gguf.GGUFReader(path).fields
    assert fields["general.architecture"].contents() == "flux"
    assert fields["general.quantization_version"].contents() == gguf.GGML_QUANT_VERSION


@pytest.mark.parametrize(
    ("dtype", "step"),
    [("q8_0", 1 / 127), ("q4_0", 1 / 8), ("q4_k", 1 / 8), ("q5_k", 1 / 16), ("q6_k", 1 / 24), ("iq4_nl", 1 / 4)],
)  # fmt: skip
def test_large_matrices_are_quantised_and_the_rest_is_not(tmp_path, capsys, flux, dtype, step):
    path = tmp_path / "a.gguf"
    report = converted(capsys, flux, path, "--type", dtype)
    exact = tmp_path / "exact.gguf"
    converted(capsys, flux, exact, "--type", "f32")
    (values, types), (wanted, _) = tensors_of(path), tensors_of(exact)
    for name, kind in types.items():
        is_large = name.startswith(("double", "single")) and name.endswith(".weight")
        assert kind == (dtype.upper() if is_large else "F32"), name
        error = np.abs(values[name] - wanted[name]).max()
        assert error == 0 if not is_large else 0 < error < step * np.abs(wanted[name]).max(), name
    assert report["types"][dtype] == sum(kind == dtype.upper() for kind in types.values()) == 13
    if dtype == "q8_0":
        name = "double_blocks.0.img_attn.qkv.weight"
        raw = next(t.data for t in gguf.GGUFReader(path).tensors if t.name == name)
        np.testing.assert_array_equal(raw, quantize(wanted[name], gguf.GGMLQuantizationType.Q8_0))
    model = FluxTransformer.from_pretrained(path, "auto")
    assert model.compute_dtype == dtype
    reference = outputs(FluxTransformer.from_pretrained(flux))
    error = np.abs(outputs(model) - reference).max() / np.abs(reference).max()
    assert 0 < error < 0.5


def test_kinds_of_files_are_those_of_llama_cpp():
    names = {"f32": "ALL_F32"} | {f"q{bits}_k": f"MOSTLY_Q{bits}_K_S" for bits in (3, 4, 5)}
    for dtype, number in FILE_TYPES.items():
        assert gguf.LlamaFileType(number).name == names.get(dtype, f"MOSTLY_{dtype.upper()}")


def test_the_first_rule_that_fits_decides(tmp_path, capsys, flux):
    path = tmp_path / "a.gguf"
    rules = ["--keep", r"img_attn\.qkv=q6_k", "--keep", "attn=f16", "--keep", r"^img_in\.weight=bf16"]
    converted(capsys, flux, path, "--type", "q8_0", *rules)
    _, types = tensors_of(path)
    assert types["double_blocks.0.img_attn.qkv.weight"] == "Q6_K"
    assert types["double_blocks.0.img_attn.qkv.bias"] == "F16"  # blocks are for matrices
    assert types["double_blocks.0.txt_attn.qkv.weight"] == "F16"
    assert types["single_blocks.0.linear1.weight"] == "Q8_0"
    assert types["img_in.weight"] == "BF16"
    assert types["txt_in.weight"] == "F32"


@pytest.mark.parametrize(
    ("shape", "stored", "dtype", "expected"),
    [
        ((64, 256), {"F32"}, "q4_k", "q4_k"),
        ((64, 96), {"F32"}, "q4_k", "q8_0"),
        ((64, 80), {"F32"}, "q4_k", "f16"),
        ((64, 80), {"F32"}, "bf16", "bf16"),
        ((64, 16, 3, 32), {"F32"}, "q8_0", "f16"),
        ((4096,), {"BF16"}, "q8_0", "f32"),
        ((32, 32), {"F16"}, "q8_0", "f32"),
        ((64, 256), {"Q4_K"}, "stored", "q4_k"),
        ((64, 256), {"F8_E4M3"}, "stored", "bf16"),
        ((64, 256), {"F16", "F32"}, "stored", "f32"),
    ],
)
def test_types_of_tensors_that_no_rule_is_for(shape, stored, dtype, expected):
    assert choose_type("a.weight", shape, stored, dtype, []) == expected


def test_blocks_of_a_gguf_file_are_copied_or_made_again(tmp_path, capsys, flux):
    first, second, third = (tmp_path / f"{name}.gguf" for name in "abc")
    converted(capsys, flux, first, "--type", "q8_0")
    converted(capsys, first, second, "--type", "stored")
    sources = [GgufFile(path) for path in (first, second)]
    for key in sources[0]:
        np.testing.assert_array_equal(*(source.read(key) for source in sources), key)
    converted(capsys, first, third, "--type", "q4_0")
    name = "single_blocks.0.linear2.weight"
    again = next(t for t in gguf.GGUFReader(third).tensors if t.name == name)
    np.testing.assert_array_equal(
        again.data, quantize(tensors_of(first)[0][name], gguf.GGMLQuantizationType.Q4_0)
    )


def test_lora_is_added_to_quantised_weights_and_rounded_back(tmp_path, capsys, flux):
    path, name = tmp_path / "a.gguf", "transformer_blocks.0.attn.to_k"
    converted(capsys, flux, path, "--type", "q8_0")
    own = load_file(flux / "diffusion_pytorch_model.safetensors")
    factors = random_factors({key: value.shape for key, value in own.items()}, [name, "proj_out"])
    lora = write_lora(tmp_path / "lora.safetensors", factors)
    summed = tmp_path / "summed"
    write_flux_transformer(summed, **json.loads((flux / "config.json").read_text()))
    qkv = tensors_of(path)[0]["double_blocks.0.img_attn.qkv.weight"]
    rounded = dict(own)
    for key, source in (("to_q", qkv[:256]), ("to_k", qkv[256:512]), ("to_v", qkv[512:])):
        rounded[f"transformer_blocks.0.attn.{key}.weight"] = source
    save_file(added(rounded, factors), summed / "diffusion_pytorch_model.safetensors")
    converted(capsys, summed, tmp_path / "b.gguf", "--type", "q8_0")
    deltas = Loras.of([lora]).deltas("FluxPipeline", {"transformer": path}, {"transformer": FluxTransformer})
    expected = outputs(FluxTransformer.from_pretrained(tmp_path / "b.gguf", "auto"))
    merged = FluxTransformer.from_pretrained(path, "auto", deltas=deltas["transformer"])
    nbytes = merged.weights.nbytes
    result = outputs(merged)
    # sums in f32 may fall on the other side of a rounding border than sums in f64
    assert np.abs(result - expected).max() <= 1e-3 * np.abs(expected).max()
    assert nbytes == FluxTransformer.from_pretrained(path, "auto").weights.nbytes
    apart = FluxTransformer.from_pretrained(path, "auto", deltas=deltas["transformer"], lora_mode="apart")
    assert 0 < np.abs(outputs(apart) - expected).max() <= 0.05 * np.abs(expected).max()


def test_scales_of_fp8_are_applied(tmp_path, capsys):
    write_flux_transformer(tmp_path / "flux")
    tensors = {name: (x, "F32") for name, x in original("flux", read_component(tmp_path / "flux")).items()}
    name = "single_blocks.0.linear1"
    bits = np.random.default_rng(0).integers(0, 0x70, tensors[f"{name}.weight"][0].shape).astype(np.uint8)
    tensors[f"{name}.weight"] = (bits, "F8_E4M3")
    tensors[f"{name}.weight_scale"] = (np.float32([0.125]), "F32")
    write_typed(tmp_path / "a.safetensors", tensors)
    shutil.copy(tmp_path / "flux" / "config.json", tmp_path)
    exponent, mantissa = (bits >> 3).astype(int), (bits & 7) / 8
    decoded = np.where(exponent > 0, (1 + mantissa) * 2.0 ** (exponent - 7), mantissa * 2.0**-6)
    for dtype in ("f32", "stored"):
        converted(capsys, tmp_path / "a.safetensors", tmp_path / "a.gguf", "--type", dtype)
        values, types = tensors_of(tmp_path / "a.gguf")
        np.testing.assert_array_equal(values[f"{name}.weight"], (decoded / 8).astype(np.float32))
        assert types[f"{name}.weight"] == {"f32": "F32", "stored": "BF16"}[dtype]


def test_types_that_need_statistics_take_no_sums(tmp_path, capsys, flux, monkeypatch):
    path = tmp_path / "a.gguf"
    converted(capsys, flux, path, "--type", "q8_0")
    shapes = {key: value.shape for key, value in load_file(flux / "diffusion_pytorch_model.safetensors").items()}
    factors = random_factors(shapes, ["transformer_blocks.0.attn.to_k"])
    lora = write_lora(tmp_path / "lora.safetensors", factors)
    deltas = Loras.of([lora]).deltas("FluxPipeline", {"transformer": path}, {"transformer": FluxTransformer})
    monkeypatch.setattr("edgedit.weights.deltas.needs_statistics", lambda dtype: dtype == "q8_0")
    with pytest.raises(CheckpointError, match=r"attn.to_k.weight' is q8_0, .*keep the LoRA apart \(lora_mode\)"):
        FluxTransformer.from_pretrained(path, "auto", deltas=deltas["transformer"])
    for options in ({"compute_dtype": "f16"}, {"compute_dtype": "auto", "lora_mode": "apart"}):
        FluxTransformer.from_pretrained(path, deltas=deltas["transformer"], **options).close()


def test_no_more_than_a_piece_of_a_tensor_is_held(tmp_path, capsys, monkeypatch):
    write_t5(tmp_path / "t5", d_model=512, d_ff=4096, num_layers=1, num_heads=4, d_kv=8, vocab_size=64)
    monkeypatch.setattr(convert, "PIECE_ELEMENTS", 1 << 15)
    converted(capsys, tmp_path / "t5", tmp_path / "warm.gguf", "--type", "q8_0")
    tracemalloc.start()
    converted(capsys, tmp_path / "t5", tmp_path / "a.gguf", "--type", "q8_0")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    largest = 512 * 4096 * 4
    assert peak < largest / 4


class Failure(Exception):
    pass


@pytest.mark.parametrize("existing", [b"", b"an older file"])
@pytest.mark.parametrize(
    "failure",
    [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt(), signal.SIGTERM],
    ids=repr,
)
def test_a_failure_leaves_what_was_there(tmp_path, capsys, monkeypatch, flux, failure, existing):
    path = tmp_path / "out" / "a.gguf"
    path.parent.mkdir()
    if existing:
        path.write_bytes(existing)
    calls = iter(range(9))
    real = convert.converted

    def fail(*args):
        if next(calls) == 5:
            if isinstance(failure, signal.Signals):
                signal.raise_signal(failure)
            else:
                raise failure
        return real(*args)

    monkeypatch.setattr(convert, "converted", fail)
    monkeypatch.setattr("edgedit.weights.export.usable_cores", lambda: 1)
    message = refused(
        capsys, cli.FAILURE if isinstance(failure, OSError) else cli.INTERRUPTED, flux, path, "--type", "q8_0"
    )
    assert ("No space left" in message) == isinstance(failure, OSError)
    assert [file.name for file in path.parent.iterdir()] == (["a.gguf"] if existing else [])
    assert not existing or path.read_bytes() == existing


def test_a_disk_without_room_is_refused_before_anything_is_written(tmp_path, capsys, monkeypatch, flux):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    message = refused(capsys, cli.BAD_INPUT, flux, tmp_path / "a.gguf")
    assert "only 1000 are free" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["IN", "a.safetensors"], "must end in .gguf"),
        (["/nowhere", "a.gguf"], "/nowhere does not exist"),
        (["IN", "nowhere/a.gguf"], "there is no directory"),
        (["IN", "a.gguf", "--type", "iq2_xxs"], "type 'iq2_xxs' needs statistics of activations; legal: f32, f16"),
        (["IN", "a.gguf", "--keep", "attn_qkv=q8_0"], "rule 'attn_qkv': no tensor's name has it; names in the file"),
        (["IN", "a.gguf", "--type", "q9"], "unknown type 'q9'; legal: f32, f16, bf16, q4_0"),
        (["IN", "a.gguf", "--keep", "f16"], "'f16' is not of the form REGEX=TYPE"),
        (["IN", "a.gguf", "--keep", "(=f16"], "'(' is no regular expression"),
        (["IN", "a.gguf", "--keep", "x=q9"], "unknown type 'q9'"),
        (["IN", "a.gguf", "--keep", "final_layer.linear=q4_k", "--part", "vae"], "no part 'vae'; it has transformer"),
        (["IN", "a.gguf", "--keep", "img_in=q4_k"], "rows of img_in.weight, 16 elements, do not fill blocks of q4_k"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(tmp_path, capsys, flux, words, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, cli.BAD_INPUT, *(flux if word == "IN" else word for word in words))
    assert not list(tmp_path.iterdir())


def test_a_network_that_is_not_whole_is_refused(tmp_path, capsys):
    write_flux_transformer(tmp_path / "flux")
    file = tmp_path / "flux" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    del tensors["proj_out.bias"]
    save_file(tensors, file)
    message = refused(capsys, cli.FAILURE, tmp_path / "flux", tmp_path / "a.gguf")
    assert "1 missing: proj_out.bias" in message
    assert not (tmp_path / "a.gguf").exists()
