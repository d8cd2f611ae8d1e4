"""Files in the original layouts, loaded by diffusers' `from_single_file` and by us: the same values, the same outputs.

diffusers says what each original name means; nothing here rests on the package's own maps but the writing of files.
"""

import inspect
import json

import gguf
import numpy as np
import pytest
from relative_error import relative_error
from safetensors.numpy import save_file
from single_files import original, prefixed, read_component, write_gguf
from tiny import write_flux_transformer, write_t5, write_vae
from tiny_sd3 import write_clip_with_projection, write_sd3_transformer

from edgedit.models.autoencoder_kl import AutoencoderKL
from edgedit.models.clip import CLIPTextModelWithProjection
from edgedit.models.flux import FluxTransformer
from edgedit.models.sd3 import SD3Transformer
from edgedit.models.t5 import T5EncoderModel
from edgedit.weights.recognise import component_of
from edgedit.weights.sources import open_source

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")
from diffusers.loaders import single_file_model, single_file_utils  # noqa: E402

PREFIXES = ["", "model.diffusion_model."]


def values_of(path, architecture):
    """What we read from a file, under the names of diffusers."""
    source = component_of(open_source(path), architecture).source
    return {key: source.as_f32(key) for key in source}


def assert_same_values(path, architecture, model):
    ours = values_of(path, architecture)
    theirs = {key: values.numpy() for key, values in model.state_dict().items()}
    assert set(ours) == set(theirs)
    for key, values in theirs.items():
        np.testing.assert_array_equal(ours[key].reshape(values.shape), values, err_msg=key)


@pytest.fixture
def flux_of_any_width(monkeypatch):
    """diffusers splits FLUX's fused layers at the width of FLUX.1; the same code with the width of a tiny model."""
    text = inspect.getsource(single_file_utils.convert_flux_transformer_checkpoint_to_diffusers)
    assert text.count("inner_dim = 3072") == 1
    scope = dict(vars(single_file_utils))
    exec(text.replace("inner_dim = 3072", "inner_dim = 128"), scope)
    entry = single_file_model.SINGLE_FILE_LOADABLE_CLASSES["FluxTransformer2DModel"]
    monkeypatch.setitem(entry, "checkpoint_mapping_fn", scope["convert_flux_transformer_checkpoint_to_diffusers"])


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("guidance", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_flux(tmp_path, flux_of_any_width, prefix, guidance):
    config = write_flux_transformer(
        tmp_path / "transformer", seed=1, num_attention_heads=1, attention_head_dim=128,
        axes_dims_rope=[16, 56, 56], num_layers=2, num_single_layers=3, guidance_embeds=guidance,
    )  # fmt: skip
    tensors = original("flux", read_component(tmp_path / "transformer"))
    file = tmp_path / "flux.safetensors"
    save_file(prefixed(prefix, tensors), file)
    reference = diffusers.FluxTransformer2DModel.from_single_file(
        str(file), config=str(tmp_path / "transformer"), torch_dtype=torch.float32
    )
    assert_same_values(file, "flux", reference)

    rng = np.random.default_rng(0)
    call = {
        "hidden_states": rng.standard_normal((2, 12, config["in_channels"]), dtype=np.float32),
        "encoder_hidden_states": rng.standard_normal((2, 5, config["joint_attention_dim"]), dtype=np.float32),
        "pooled_projections": rng.standard_normal((2, config["pooled_projection_dim"]), dtype=np.float32),
        "timestep": np.array([0.3, 0.8], np.float32),
        "img_ids": np.stack([np.zeros(12), *np.divmod(np.arange(12), 4)], 1).astype(np.float32),
        "txt_ids": np.zeros((5, 3), np.float32),
    }  # fmt: skip
    if guidance:
        call["guidance"] = np.array([3.5, 2.0], np.float32)
    with torch.no_grad():
        expected = reference(**{name: torch.from_numpy(values) for name, values in call.items()}).sample
    assert relative_error(FluxTransformer.from_pretrained(file)(**call), expected) < 1e-4


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("qk_norm", [None, "rms_norm"])
@pytest.mark.filterwarnings("ignore")
def test_sd3(tmp_path, prefix, qk_norm):
    config = write_sd3_transformer(
        tmp_path / "transformer", seed=3, num_attention_heads=2, attention_head_dim=64, num_layers=3,
        dual_attention_layers=[0, 1] if qk_norm else [], qk_norm=qk_norm,
    )  # fmt: skip
    file = tmp_path / "sd3.safetensors"
    save_file(prefixed(prefix, original("sd3", read_component(tmp_path / "transformer"))), file)
    reference = diffusers.SD3Transformer2DModel.from_single_file(
        str(file), config=str(tmp_path / "transformer"), torch_dtype=torch.float32
    )
    assert_same_values(file, "sd3", reference)

    rng = np.random.default_rng(0)
    call = {
        "hidden_states": rng.standard_normal((2, config["in_channels"], 8, 6), dtype=np.float32),
        "encoder_hidden_states": rng.standard_normal((2, 5, config["joint_attention_dim"]), dtype=np.float32),
        "pooled_projections": rng.standard_normal((2, config["pooled_projection_dim"]), dtype=np.float32),
        "timestep": np.array([300.0, 800.0], np.float32),
    }
    with torch.no_grad():
        expected = reference(**{name: torch.from_numpy(values) for name, values in call.items()}).sample
    assert relative_error(SD3Transformer.from_pretrained(file)(**call), expected) < 1e-4


@pytest.mark.parametrize("prefix", ["", "first_stage_model."])
@pytest.mark.filterwarnings("ignore")
def test_autoencoder(tmp_path, prefix):
    write_vae(
        tmp_path / "vae", seed=4, norm_num_groups=32, block_out_channels=[32, 64, 64], layers_per_block=2,
        down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3,
    )  # fmt: skip
    tensors = original("autoencoder_kl", read_component(tmp_path / "vae"))
    for key in tensors:  # as the original has them: convolutions with kernels of one pixel
        if ".attn_1." in key and tensors[key].ndim == 2:
            tensors[key] = tensors[key][:, :, None, None]
    file = tmp_path / "ae.safetensors"
    save_file(prefixed(prefix, tensors), file)
    reference = diffusers.AutoencoderKL.from_single_file(
        str(file), config=str(tmp_path / "vae"), torch_dtype=torch.float32
    )
    assert_same_values(file, "autoencoder_kl", reference)
    latents = np.random.default_rng(0).standard_normal((1, 4, 5, 3), dtype=np.float32)
    latents = np.repeat(latents, reference.config.latent_channels // 4 or 1, 1)[:, : reference.config.latent_channels]
    with torch.no_grad():
        expected = reference.decode(torch.from_numpy(latents)).sample
    assert relative_error(AutoencoderKL.from_pretrained(file).decode(latents), expected) < 1e-4


def test_open_clip(tmp_path):
    """Against the conversion in diffusers, whose widths come from a model."""
    config = write_clip_with_projection(
        tmp_path / "clip", seed=6, hidden_size=128, num_attention_heads=2, projection_dim=128, hidden_act="gelu"
    )
    tensors = original("clip", read_component(tmp_path / "clip"), "open_clip")
    file = tmp_path / "open_clip.safetensors"
    save_file({key: np.ascontiguousarray(values) for key, values in tensors.items()}, file)
    model = transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig(**config))
    converted = single_file_utils.convert_open_clip_checkpoint(
        model, {key: torch.from_numpy(np.ascontiguousarray(values)) for key, values in tensors.items()}, prefix=""
    )
    ours = values_of(file, "clip")
    converted.pop("text_model.embeddings.position_ids", None)
    assert {key.removeprefix("text_model.") for key in ours} == {
        key.removeprefix("text_model.") for key in converted
    }
    converted = {key.removeprefix("text_model."): values for key, values in converted.items()}
    for key, values in ours.items():
        np.testing.assert_array_equal(values, converted[key.removeprefix("text_model.")].numpy(), err_msg=key)
    ids = np.random.default_rng(0).integers(0, 2000, (2, 9))
    loaded = CLIPTextModelWithProjection.from_pretrained(tmp_path / "clip")
    (tmp_path / "config.json").write_text(json.dumps(config))
    for a, b in zip(CLIPTextModelWithProjection.from_pretrained(file)(ids), loaded(ids), strict=True):
        np.testing.assert_array_equal(a, b)


def test_t5_names_of_llama_cpp(tmp_path):
    """Against the `gguf` library, which knows llama.cpp's names of every tensor."""
    config = write_t5(tmp_path / "t5", seed=7)
    own = read_component(tmp_path / "t5")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5ENCODER, config["num_layers"])
    theirs = {names.get_name(key, try_suffixes=(".weight", ".bias")): key for key in own}
    ours = original("t5", own, "llama.cpp")
    assert set(theirs) == set(ours)
    for name, key in theirs.items():
        np.testing.assert_array_equal(ours[name], own[key], err_msg=name)
    file = write_gguf(tmp_path / "t5.gguf", ours, "Q8_0", "t5encoder")
    ids = np.random.default_rng(0).integers(0, 900, (2, 9))
    expected = torch.from_numpy(T5EncoderModel.from_pretrained(tmp_path / "t5")(ids))
    assert 0 < relative_error(T5EncoderModel.from_pretrained(file, "auto")(ids), expected) < 0.05
