"""LoRA on whole networks: every spelling and both modes give what a checkpoint with the sums written into it gives."""

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from lora_files import added, fused, random_factors, write_lora
from safetensors.numpy import load_file, save_file
from tiny import write_flux_pipeline, write_t5
from tiny_sd3 import write_sd3_pipeline

from edgedit import Pipeline, cli
from edgedit.errors import CheckpointError
from edgedit.models.clip import CLIPTextModel
from edgedit.models.flux import FluxTransformer
from edgedit.models.sd3 import SD3Transformer
from edgedit.models.t5 import T5EncoderModel
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.loras import Loras
from edgedit.weights import Checkpoint, convert, loader

FAMILIES = {
    "flux": (write_flux_pipeline, "FluxPipeline", FluxTransformer),
    "sd3": (write_sd3_pipeline, "StableDiffusion3Pipeline", SD3Transformer),
}
# Modules in the names of diffusers, and under which name the original network has them: alone, fused in this order, or
# with its halves the other way round.
ORIGINAL = {
    "flux": {
        "img_in": ["x_embedder"],
        "vector_in.in_layer": ["time_text_embed.text_embedder.linear_1"],
        "double_blocks.0.img_mod.lin": ["transformer_blocks.0.norm1.linear"],
        "double_blocks.0.img_attn.qkv": [f"transformer_blocks.0.attn.to_{x}" for x in "qkv"],
        "double_blocks.1.txt_attn.qkv": [f"transformer_blocks.1.attn.add_{x}_proj" for x in "qkv"],
        "double_blocks.1.txt_mlp.2": ["transformer_blocks.1.ff_context.net.2"],
        "double_blocks.0.img_mlp.0": ["transformer_blocks.0.ff.net.0.proj"],
        "single_blocks.1.linear1": [
            *(f"single_transformer_blocks.1.attn.to_{x}" for x in "qkv"),
            "single_transformer_blocks.1.proj_mlp",
        ],
        "single_blocks.0.linear2": ["single_transformer_blocks.0.proj_out"],
        "final_layer.adaLN_modulation.1": "norm_out.linear",
        "final_layer.linear": ["proj_out"],
    },
    "sd3": {
        "x_embedder.proj": ["pos_embed.proj"],
        "joint_blocks.0.x_block.attn.qkv": [f"transformer_blocks.0.attn.to_{x}" for x in "qkv"],
        "joint_blocks.1.context_block.attn.proj": ["transformer_blocks.1.attn.to_add_out"],
        "joint_blocks.0.x_block.attn2.qkv": [f"transformer_blocks.0.attn2.to_{x}" for x in "qkv"],
        "joint_blocks.1.x_block.mlp.fc1": ["transformer_blocks.1.ff.net.0.proj"],
        "joint_blocks.2.context_block.adaLN_modulation.1": "transformer_blocks.2.norm1_context.linear",
        "final_layer.adaLN_modulation.1": "norm_out.linear",
        "context_embedder": ["context_embedder"],
    },
}
SPELLINGS = {
    "diffusers": ("transformer.", ("lora_A", "lora_B"), False, False),
    "bare": ("", ("lora_A.default", "lora_B.default"), False, False),
    "flat": ("lora_transformer_", ("lora_down", "lora_up"), True, False),
    "original": ("diffusion_model.", ("lora_A", "lora_B"), False, True),
    "original, bare": ("", ("lora_A", "lora_B"), False, True),
    "kohya": ("lora_unet_", ("lora_down", "lora_up"), True, True),
}  # fmt: skip


class Case:
    """A tiny pipeline and factors for some modules of its transformer."""

    def __init__(self, name, directory):
        write, self.family, self.model = FAMILIES[name]
        self.directory = write(directory / name, **({"dual": (0,)} if name == "sd3" else {}))
        self.original = ORIGINAL[name]
        self.file = self.directory / "transformer" / "diffusion_pytorch_model.safetensors"
        self.tensors = load_file(self.file)
        names = [[names] if isinstance(names, str) else names for names in self.original.values()]
        modules = [name for group in names for name in group if name != "pos_embed.proj"]
        self.factors = random_factors({k: v.shape for k, v in self.tensors.items()}, modules)
        if name == "sd3":
            rng = np.random.default_rng(5)
            down = rng.standard_normal((3, *self.tensors["pos_embed.proj.weight"].shape[1:]), np.float32)
            up = rng.standard_normal((len(self.tensors["pos_embed.proj.weight"]), 3, 1, 1), np.float32)
            self.factors["pos_embed.proj"] = (down / 4, up)

    def spelled(self, original):
        """The factors by the names of diffusers, or as the original network has them."""
        if not original:
            return self.factors
        result = {}
        for name, modules in self.original.items():
            if isinstance(modules, str):
                down, up = self.factors[modules]
                half = len(up) // 2
                result[name] = (down, np.concatenate([up[half:], up[:half]]))
            elif len(modules) > 1:
                result[name] = fused(self.factors, modules)
            else:
                result[name] = self.factors[modules[0]]
        return result

    def flat(self):
        """The factors as matrices."""
        return {
            module: (down.reshape(len(down), -1), up.reshape(len(up), -1))
            for module, (down, up) in self.factors.items()
        }

    def deltas(self, *loras):
        networks = {"transformer": self.directory / "transformer"}
        return Loras.of(loras).deltas(self.family, networks, {"transformer": self.model})["transformer"]

    def run(self, directory=None, context=None, **options):
        model = self.model.from_pretrained(
            directory or self.directory / "transformer", threads=1, parallel=context, **options
        )
        try:
            return model(**self.inputs(model.config))
        finally:
            model.close()

    def inputs(self, config):
        rng = np.random.default_rng(1)
        draws = {
            "encoder_hidden_states": (1, 5, config.joint_attention_dim),
            "pooled_projections": (1, config.pooled_projection_dim),
        }
        if self.family == "FluxPipeline":
            draws["hidden_states"] = (1, 6, config.in_channels)
            ids = {"img_ids": np.stack([np.zeros(6), *np.indices((2, 3)).reshape(2, -1)], 1)}
            ids["txt_ids"] = np.zeros((5, 3))
        else:
            draws["hidden_states"] = (1, config.in_channels, 4, 6)
            ids = {}
        arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in draws.items()}
        return arrays | ids | {"timestep": np.full(1, 0.5, np.float32)}

    def expected(self, scale=1.0, factors=None):
        """Output of a checkpoint into which the sums are written."""
        directory = self.directory / "summed"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(self.directory / "transformer", directory)
        save_file(added(self.tensors, factors or self.flat(), scale), directory / self.file.name)
        return self.run(directory)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    return Case(request.param, tmp_path_factory.mktemp("lora"))


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    return Case("flux", tmp_path_factory.mktemp("lora_flux"))


def close(result, expected, tolerance=1e-5):
    assert np.abs(result - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_gives_what_summed_weights_give(case, tmp_path, spelling):
    prefix, names, flat, original = SPELLINGS[spelling]
    rank = 3
    path = write_lora(tmp_path / "lora.safetensors", case.spelled(original), prefix, names, None, flat)
    deltas = case.deltas(path)
    assert {name.removesuffix(".weight") for name in deltas} == set(case.factors)
    assert {deltas.rank(name) for name in deltas} <= {rank, 3 * rank, 4 * rank}
    expected = case.expected()
    close(case.run(deltas=deltas), expected)
    assert np.abs(case.run() - expected).max() > 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("choice", [{}, {"kernels": "ggml"}, {"ops": "generic"}], ids=str)
def test_kept_apart_it_gives_the_same(case, tmp_path, choice):
    path = write_lora(tmp_path / "lora.safetensors", case.factors, alpha=1.5)
    deltas = case.deltas((path, 0.5))
    (result,) = ParallelContext.local(
        1, lambda context: case.run(context=context, deltas=deltas, lora_mode="apart"), **choice
    )
    close(result, case.expected(0.25))


@pytest.mark.parametrize(
    "layout",
    [{"ulysses_degree": 2}, {"tp_degree": 2}, {"ulysses_degree": 2, "weight_residency": "sharded"}],
    ids=lambda layout: " ".join(layout),
)
@pytest.mark.parametrize("mode", ["merge", "apart"])
def test_ranks_that_share_work_or_weights_give_the_same(case, tmp_path, layout, mode):
    path = write_lora(
        tmp_path / "lora.safetensors", case.spelled(True), "lora_unet_", ("lora_down", "lora_up"), flat=True
    )
    deltas = case.deltas(path)
    results = ParallelContext.local(
        2, lambda context: case.run(context=context, deltas=deltas, lora_mode=mode), **layout
    )
    for result in results:
        close(result, case.expected(), 5e-5)


def test_several_are_summed_with_their_weights(flux, tmp_path):
    paths = [
        write_lora(tmp_path / "a.safetensors", flux.factors, alpha=6.0),
        write_lora(tmp_path / "b.safetensors", flux.spelled(True), "lora_unet_", ("lora_down", "lora_up"), flat=True),
    ]  # fmt: skip
    deltas = flux.deltas((paths[0], 0.5), (paths[1], -0.25))
    expected = flux.expected(6 / 3 * 0.5 - 0.25)
    close(flux.run(deltas=deltas), expected)
    close(flux.run(deltas=deltas, lora_mode="apart"), expected)


@pytest.mark.parametrize("compute", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("stored", ["F16", "BF16"])
def test_sums_are_rounded_once(tmp_path, compute, stored):
    """With short numbers the sums are exact: the bits in memory are those of the rounded sums."""
    rng = np.random.default_rng(0)
    directory = write_flux_pipeline(tmp_path / "flux", dtype=stored)
    flux = Case.__new__(Case)
    flux.family, flux.model, flux.directory = "FluxPipeline", FluxTransformer, directory
    summed = write_flux_pipeline(tmp_path / "summed", dtype=stored) / "transformer"
    file = summed / "diffusion_pytorch_model.safetensors"
    source = Checkpoint.open(file)
    tensors = {key: source.as_f32(key).copy() for key in source}
    factors = {}
    for module in ("transformer_blocks.0.attn.to_q", "single_transformer_blocks.1.proj_out"):
        rows, columns = tensors[f"{module}.weight"].shape
        down, up = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((2, columns), (rows, 2)))
        factors[module] = (down / 8, up / 8)
    save_file(added(tensors, factors), file)
    path = write_lora(tmp_path / "lora.safetensors", factors)
    models = [
        FluxTransformer.from_pretrained(directory / "transformer", compute, deltas=flux.deltas(path)),
        FluxTransformer.from_pretrained(summed, compute),
    ]
    inputs = flux.inputs(models[0].config)
    np.testing.assert_array_equal(*(model(**inputs) for model in models))


def text_factors(directory, component, modules, seed):
    shapes = {k: v.shape for k, v in load_file(directory / component / "model.safetensors").items()}
    return random_factors(shapes, modules, seed=seed)


@pytest.mark.parametrize("spelling", ["diffusers", "kohya"])
def test_a_pipeline_takes_lora_for_its_text_encoders_too(flux, tmp_path, spelling, capsys):
    clip = ["text_model.encoder.layers.0.self_attn.q_proj", "text_model.encoder.layers.1.mlp.fc1"]
    t5 = ["encoder.block.0.layer.0.SelfAttention.q", "encoder.block.1.layer.1.DenseReluDense.wi_0"]
    parts = {
        "transformer": flux.factors,
        "text_encoder": text_factors(flux.directory, "text_encoder", clip, 1),
        "text_encoder_2": text_factors(flux.directory, "text_encoder_2", t5, 2),
    }
    flat = spelling == "kohya"
    prefixes = ("lora_unet_", "lora_te1_", "lora_te3_") if flat else tuple(f"{part}." for part in parts)
    names = ("lora_down", "lora_up") if flat else ("lora_A", "lora_B")
    tensors = {}
    summed, lora = tmp_path / "summed", tmp_path / "lora.safetensors"
    shutil.copytree(flux.directory, summed)
    for prefix, (component, factors) in zip(prefixes, parts.items(), strict=True):
        tensors |= load_file(write_lora(tmp_path / "part.safetensors", factors, prefix, names, flat=flat))
        file = next((summed / component).glob("*.safetensors"))
        save_file(added(load_file(file), factors, 0.5), file)
    save_file(tensors, lora)
    results = []
    for words in (["--model", summed], ["--model", flux.directory, "--lora", f"{lora}:0.5"]):
        words += ["-p", "a red apple", "-s", "3", "--steps", "2", "--quiet", "--json"]
        words += ["-o", tmp_path / "a.png", "--latents-out", tmp_path / "latents.npy"]
        assert cli.main(["generate", *map(str, words)]) == 0
        results.append(np.load(tmp_path / "latents.npy"))
        assert json.loads(capsys.readouterr().out)["seed"] == 3
    close(results[1], results[0])
    with Pipeline.from_pretrained(flux.directory) as plain:
        assert np.abs(plain("a red apple", num_inference_steps=2, seed=3).latents - results[0]).max() > 0.01


def test_what_does_not_fit_the_model_is_named_before_weights_are_read(flux, tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "declare", lambda *_: pytest.fail("allocated"))
    rank = np.ones((2, 64), np.float32), np.ones((64, 2), np.float32)
    cases = {
        "does not have: transformer.transformer_blocks.7.attn.to_q": {"transformer_blocks.7.attn.to_q": rank},
        "changes 12 modules.* and 2 more": {f"transformer_blocks.0.attn.to_x{i}": rank for i in range(12)},
        r"ff.net.0.proj is \[64, 64\] for \[256, 64\]": {"transformer_blocks.0.ff.net.0.proj": rank},
    }
    for message, factors in cases.items():
        path = write_lora(tmp_path / "lora.safetensors", factors)
        with pytest.raises(CheckpointError, match=message) as error:
            Pipeline.from_pretrained(flux.directory, loras=[path])
        assert str(path) in str(error.value)


def test_a_text_encoder_that_the_model_does_not_have_is_named(tmp_path):
    directory = write_sd3_pipeline(tmp_path / "sd3", with_t5=False)
    factors = {
        "encoder.block.0.layer.0.SelfAttention.q": (
            np.ones((1, 32), np.float32),
            np.ones((32, 1), np.float32),
        )
    }
    path = write_lora(tmp_path / "lora.safetensors", factors, "text_encoder_3.")
    with pytest.raises(
        CheckpointError, match=r"transformer, text_encoder, text_encoder_2\).*text_encoder_3.encoder"
    ):
        Pipeline.from_pretrained(directory, loras=[path])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lora", "/nowhere.safetensors"], "LoRA /nowhere.safetensors does not exist"),
        (["--lora", f"{__file__}:inf"], "has the weight inf"),
    ],
)
def test_bad_options_are_bad_input(capsys, words, message):
    assert cli.main(["generate", "-p", "a", *words]) == cli.BAD_INPUT
    assert message in capsys.readouterr().err


def test_a_clip_model_alone_takes_deltas(flux, tmp_path):
    modules = ["text_model.encoder.layers.1.self_attn.out_proj"]
    factors = text_factors(flux.directory, "text_encoder", modules, 3)
    path = write_lora(tmp_path / "lora.safetensors", factors, "text_encoder.")
    networks = {"text_encoder": flux.directory / "text_encoder"}
    deltas = Loras.of([path]).deltas("FluxPipeline", networks, {"text_encoder": CLIPTextModel})
    ids = np.arange(8)[None] + 5

    def states(**options):
        return CLIPTextModel.from_pretrained(flux.directory / "text_encoder", **options)(ids)[0]

    results = [states(deltas=deltas["text_encoder"], lora_mode=mode) for mode in ("merge", "apart")]
    close(results[1], results[0])
    assert np.abs(results[0] - states()).max() > 0.01


def test_no_more_than_a_piece_of_a_sum_is_held(tmp_path, monkeypatch):
    write_t5(tmp_path / "t5", dtype="F16", d_model=512, d_ff=4096, num_layers=1, num_heads=4, d_kv=8, vocab_size=64)
    module = "encoder.block.0.layer.1.DenseReluDense.wi_0"
    factors = random_factors({f"{module}.weight": (4096, 512)}, [module])
    path = write_lora(tmp_path / "lora.safetensors", factors, "text_encoder_2.")
    where = {"text_encoder_2": tmp_path / "t5"}
    monkeypatch.setattr(convert, "PIECE_ELEMENTS", 1 << 15)

    def load():
        deltas = Loras.of([path]).deltas("FluxPipeline", where, {"text_encoder_2": T5EncoderModel})
        return T5EncoderModel.from_pretrained(tmp_path / "t5", "q8_0", deltas=deltas["text_encoder_2"])

    load().close()
    tracemalloc.start()
    nbytes = load().weights.nbytes
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - nbytes < 4096 * 512 * 4 / 4
