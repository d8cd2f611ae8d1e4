"""LoRA against diffusers with PEFT: the same files, the same weights of several, both modes."""

import json

import numpy as np
import pytest
from lora_files import fused, random_factors, write_lora
from relative_error import relative_error
from safetensors.numpy import load_file, save_file
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_pipeline

from edgedit.models.clip import CLIPTextModel
from edgedit.models.flux import FluxTransformer
from edgedit.models.sd3 import SD3Transformer
from edgedit.pipelines.loras import Loras

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore:Already found a `peft_config`")

MODULES = {
    "flux": [
        *(f"transformer_blocks.0.attn.to_{x}" for x in "qkv"),
        "transformer_blocks.1.attn.add_k_proj",
        "transformer_blocks.1.norm1.linear",
        "transformer_blocks.0.ff.net.0.proj",
        "transformer_blocks.1.ff_context.net.2",
        *(f"single_transformer_blocks.0.attn.to_{x}" for x in "qkv"),
        "single_transformer_blocks.0.proj_mlp",
        "single_transformer_blocks.1.proj_out",
        "x_embedder",
        "norm_out.linear",
    ],
    "sd3": [
        *(f"transformer_blocks.0.attn.to_{x}" for x in "qkv"),
        "transformer_blocks.1.attn.to_add_out",
        "transformer_blocks.0.attn2.to_q",
        "transformer_blocks.2.norm1_context.linear",
        "transformer_blocks.1.ff.net.2",
        "context_embedder",
        "norm_out.linear",
    ],
}
CLIP_MODULES = [f"text_model.encoder.layers.{i}.{name}" for i, name in ((0, "self_attn.q_proj"), (1, "mlp.fc2"))]
# Fused in the original network, in this order. (Of `linear1` diffusers only knows the sizes of FLUX.1.)
KOHYA = {
    "lora_unet_double_blocks_0_img_attn_qkv": [f"transformer_blocks.0.attn.to_{x}" for x in "qkv"],
    "lora_unet_double_blocks_1_txt_attn_qkv": [f"transformer_blocks.1.attn.add_{x}_proj" for x in "qkv"],
    "lora_unet_double_blocks_1_txt_mlp_2": ["transformer_blocks.1.ff_context.net.2"],
    "lora_unet_double_blocks_1_img_mod_lin": ["transformer_blocks.1.norm1.linear"],
    "lora_unet_single_blocks_1_linear2": ["single_transformer_blocks.1.proj_out"],
}  # fmt: skip


class Pair:
    """A tiny pipeline in diffusers and its transformer here."""

    def __init__(self, name, directory):
        self.name = name
        write, reference, self.model, self.family = {
            "flux": (write_flux_pipeline, diffusers.FluxPipeline, FluxTransformer, "FluxPipeline"),
            "sd3": (write_sd3_pipeline, diffusers.StableDiffusion3Pipeline, SD3Transformer, "StableDiffusion3Pipeline"),
        }[name]  # fmt: skip
        self.directory = write(directory / name, **({"dual": (0,)} if name == "sd3" else {}))
        self.pipe = reference.from_pretrained(self.directory)

    def factors(self, component="transformer", modules=None, **options):
        tensors = load_file(next((self.directory / component).glob("*.safetensors")))
        shapes = {key: values.shape for key, values in tensors.items()}
        return random_factors(shapes, modules or MODULES[self.name], **options)

    def inputs(self):
        config, rng = self.pipe.transformer.config, np.random.default_rng(1)
        shapes = {
            "encoder_hidden_states": (2, 5, config.joint_attention_dim),
            "pooled_projections": (2, config.pooled_projection_dim),
        }
        ids = {}
        if self.name == "flux":
            shapes["hidden_states"] = (2, 6, config.in_channels)
            ids["img_ids"] = np.stack([np.zeros(6), *np.indices((2, 3)).reshape(2, -1)], 1)
            ids["txt_ids"] = np.zeros((5, 3))
        else:
            shapes["hidden_states"] = (2, config.in_channels, 4, 6)
        arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()} | ids
        return {k: v.astype(np.float32) for k, v in arrays.items()} | {"timestep": np.float32([0.25, 0.75])}

    def expected(self, *files, weights=(1.0,)):
        """Of diffusers' transformer with adapters from files."""
        for index, file in enumerate(files):
            self.pipe.load_lora_weights(file, adapter_name=f"a{index}")
        self.pipe.set_adapters([f"a{index}" for index in range(len(files))], list(weights))
        with torch.no_grad():
            inputs = {k: torch.from_numpy(v) for k, v in self.inputs().items()}
            result = self.pipe.transformer(**inputs, return_dict=False)[0]
        self.pipe.unload_lora_weights()
        return result

    def results(self, *loras):
        """Of the transformer here, merged and apart."""
        networks = {"transformer": self.directory / "transformer"}
        deltas = Loras.of(loras).deltas(self.family, networks, {"transformer": self.model})["transformer"]
        for mode in ("merge", "apart"):
            model = self.model.from_pretrained(self.directory / "transformer", deltas=deltas, lora_mode=mode)
            yield model(**self.inputs())
            model.close()

    def plain(self):
        model = self.model.from_pretrained(self.directory / "transformer")
        return model(**self.inputs())


@pytest.fixture(scope="module", params=["flux", "sd3"])
def pair(request, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp("parity_lora"))


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    return Pair("flux", tmp_path_factory.mktemp("parity_lora_flux"))


def test_files_as_diffusers_writes_them(pair, tmp_path):
    file = write_lora(tmp_path / "lora.safetensors", pair.factors(rank=4))
    expected = pair.expected(file)
    assert relative_error(pair.plain(), expected) > 0.05
    for result in pair.results(file):
        assert relative_error(result, expected) <= 1e-4


def test_alphas_as_tensors_and_in_the_metadata(flux, tmp_path):
    factors = flux.factors(rank=4)
    with_tensors = write_lora(tmp_path / "a.safetensors", factors, alpha=2.0)
    expected = flux.expected(with_tensors)
    halved, _ = results = list(flux.results(with_tensors))
    for result in results:
        assert relative_error(result, expected) <= 1e-4
    config = {"transformer.r": 4, "transformer.lora_alpha": 2, "transformer.target_modules": list(factors)}
    config |= {"transformer.alpha_pattern": {"x_embedder": 12}, "transformer.use_rslora": True}
    with_metadata = tmp_path / "b.safetensors"
    write_lora(with_metadata, factors)
    save_file(load_file(with_metadata), with_metadata, {"format": "pt", "lora_adapter_metadata": json.dumps(config)})
    expected = flux.expected(with_metadata)
    assert relative_error(halved, expected) > 0.01
    for result in flux.results(with_metadata):
        assert relative_error(result, expected) <= 1e-4


def test_several_with_weights(pair, tmp_path):
    scale = 0.5 if pair.name == "flux" else None  # diffusers reads alphas for FLUX only
    files = [
        write_lora(
            tmp_path / f"{seed}.safetensors", pair.factors(rank=rank, seed=seed), alpha=scale and scale * rank
        )
        for seed, rank in ((1, 2), (2, 5))
    ]
    weights = (0.75, -0.5)
    expected = pair.expected(*files, weights=weights)
    for result in pair.results(*zip(files, weights, strict=True)):
        assert relative_error(result, expected) <= 1e-4


@pytest.mark.parametrize("alpha", [None, 1.0])
def test_kohyas_names_with_fused_projections(flux, tmp_path, alpha):
    own = flux.factors(modules={module for modules in KOHYA.values() for module in modules})
    factors = {name: fused(own, modules) for name, modules in KOHYA.items()}
    file = write_lora(tmp_path / "lora.safetensors", factors, "", ("lora_down", "lora_up"), alpha)
    expected = flux.expected(file)
    for result in flux.results(file):
        assert relative_error(result, expected) <= 1e-4


def test_an_adapter_that_peft_saved(flux, tmp_path):
    import peft

    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["to_q", "proj_mlp"], init_lora_weights=False)
    torch.manual_seed(0)
    model = diffusers.FluxTransformer2DModel.from_pretrained(flux.directory / "transformer")
    adapted = peft.get_peft_model(model, config)
    adapted.save_pretrained(tmp_path)
    with torch.no_grad():
        inputs = {k: torch.from_numpy(v) for k, v in flux.inputs().items()}
        expected = adapted(**inputs, return_dict=False)[0]
    assert relative_error(flux.plain(), expected) > 0.01
    for result in flux.results(tmp_path):
        assert relative_error(result, expected) <= 1e-4


def test_a_text_encoder(flux, tmp_path):
    file = write_lora(
        tmp_path / "lora.safetensors", flux.factors("text_encoder", CLIP_MODULES), "text_encoder.", alpha=6.0
    )
    ids = np.arange(16)[None] + 5
    flux.pipe.load_lora_weights(file, adapter_name="a")
    with torch.no_grad():
        expected = flux.pipe.text_encoder(torch.from_numpy(ids))[0]
    flux.pipe.unload_lora_weights()
    networks = {"text_encoder": flux.directory / "text_encoder"}
    deltas = Loras.of([file]).deltas("FluxPipeline", networks, {"text_encoder": CLIPTextModel})["text_encoder"]
    for mode in ("merge", "apart"):
        model = CLIPTextModel.from_pretrained(flux.directory / "text_encoder", deltas=deltas, lora_mode=mode)
        assert relative_error(model(ids)[0], expected) <= 1e-4
    assert relative_error(CLIPTextModel.from_pretrained(flux.directory / "text_encoder")(ids)[0], expected) > 0.01
