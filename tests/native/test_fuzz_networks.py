"""Fuzzers of what is told from the tensors of a file: whatever their names and shapes, a ValueError, or configs of
networks that can be built."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fuzzing import ODD_VALUES, bounded, fuzz_made, odd_json, write
from safetensors.numpy import save

from edgedit.errors import CheckpointError
from edgedit.models.autoencoder_kl import AutoencoderKL, AutoencoderKLConfig
from edgedit.models.clip import CLIPTextConfig, CLIPTextModel
from edgedit.models.flux import FluxConfig, FluxTransformer
from edgedit.models.sd3 import SD3Config, SD3Transformer
from edgedit.models.t5 import T5Config, T5EncoderModel
from edgedit.weights.lora_file import read_lora
from edgedit.weights.name_map import architecture
from edgedit.weights.recognise import find_components
from edgedit.weights.sources import TensorSource
from edgedit.weights.told import CONFIG_KEY, config_of

pytestmark = pytest.mark.timeout(3600)

NETWORK_NBYTES = 1 << 21  # what names, maps and networks may take, times fuzzing.MEMORY_RATIO
MODELS = {
    "flux": (FluxTransformer, FluxConfig(num_layers=1, num_single_layers=1, num_attention_heads=2)),
    "sd3": (
        SD3Transformer,
        SD3Config(num_layers=2, num_attention_heads=1, caption_projection_dim=64, dual_attention_layers=(0,)),
    ),
    "autoencoder_kl": (
        AutoencoderKL,
        AutoencoderKLConfig(
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(32, 64),
        ),
    ),
    "clip": (CLIPTextModel, CLIPTextConfig(num_hidden_layers=2, hidden_size=64)),
    "t5": (T5EncoderModel, T5Config(num_layers=2)),
}
PREFIXES = ["", "model.diffusion_model.", "first_stage_model.", "text_encoders.clip_l.transformer.", "a.b."]
NUMBERS = ["0", "1", "7", "00", "255", "100000", "999999999", "9" * 30, "9" * 5000, "-1", "٣"]
ENDS = [".scale_weight", ".weight_scale", ".comfy_quant", ".weight_scale_inv", ".bias", ".weight", "", "."]
SIZES = [0, 1, 2, 3, 64, 1280, 1 << 31, (1 << 40) - 1]


class Outline(TensorSource):
    """A source that has names, shapes and ones."""

    path = Path("outline")

    def __init__(self, shapes: dict[str, tuple[int, ...]], metadata: dict[str, Any]) -> None:
        self.shapes = shapes
        self.metadata = metadata

    def __repr__(self) -> str:
        return f"Outline({self.shapes}, {self.metadata})"

    def _named(self) -> Collection[str]:
        return self.shapes

    def shape(self, key: str) -> tuple[int, ...]:
        return self.shapes[key]

    def dtype(self, key: str) -> str:
        return "F32"

    def read(self, key: str) -> np.ndarray:
        shape = self.shapes[key]
        return np.ones(shape if math.prod(shape) < 1000 else (1,), np.float32)


def shapes_of(name: str, spelling: str) -> dict[str, tuple[int, ...]]:
    model, config = MODELS[name]
    parameters = dict(model.build_network(config).named_parameters())
    sources = architecture(name).spelling(spelling).bind(parameters).sources(parameters)
    shapes = {}
    for source, targets in sources.items():
        parts = [parameters[target.name].shape for target in targets]
        shape = (sum(part[0] for part in parts), *parts[0][1:])
        shapes[source] = shape[::-1] if targets[0].transpose else shape
    return shapes


WHOLE = {
    (name, spelling.name): shapes
    for name in MODELS
    for spelling in architecture(name).spellings
    if (shapes := shapes_of(name, spelling.name))  # some only spell what a network here does not have
}


def odd_outline(random: Random) -> Outline:
    """A network, or two under different prefixes, with up to four mishaps in names and shapes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for _ in range(random.choice([1, 1, 2])):
        prefix = random.choice(PREFIXES)
        shapes |= {prefix + key: shape for key, shape in random.choice(list(WHOLE.values())).items()}
    for _ in range(random.randint(0, 4)):
        key = random.choice(list(shapes))
        shape = list(shapes[key])
        name = key
        match random.randint(0, 7):
            case 0:
                del shapes[key]
            case 1:
                name = ".".join(random.choice(NUMBERS) if part.isdigit() else part for part in key.split("."))
            case 2:
                name = key.rpartition(".")[0] + random.choice(ENDS)
            case 3:
                name = random.choice(PREFIXES) + key
            case 4:
                name = random.choice(["", ".", "x", "\x1b[2J", key + key, key.upper(), "scaled_fp8"])
            case 5 if shape:
                shape[random.randrange(len(shape))] = random.choice(SIZES)
            case 6:
                shape = shape[: random.randint(0, len(shape))]
            case 7:
                shape = [*shape, random.choice(SIZES)]
        shapes[name] = tuple(shape)
    config = {name: random.choice(ODD_VALUES) for name in ("axes_dims_rope", "norm_num_groups", "text_config", "d_ff")}
    told = json.dumps({"_class_name": "FluxTransformer2DModel", "model_type": "t5", **config})
    return Outline(shapes, {CONFIG_KEY: told} if random.random() < 0.3 else {})


def test_whole_networks_are_told():
    for (name, spelling), shapes in WHOLE.items():
        (component,) = find_components(Outline(shapes, {}))
        assert component.architecture.name == name, spelling
        model, config = MODELS[name]
        network = model.build_network(model.config_class.from_dict(config_of(component)))
        expected = {key: parameter.shape for key, parameter in model.build_network(config).named_parameters()}
        assert {key: parameter.shape for key, parameter in network.named_parameters()} == expected


def test_odd_networks():
    def check(outline: Outline) -> None:
        with bounded(NETWORK_NBYTES):
            try:
                for component in find_components(outline):
                    model = MODELS[component.architecture.name][0]
                    model.build_network(model.config_class.from_dict(config_of(component)))
                    for key in component.source:
                        component.source.shape(key)
            except ValueError as error:
                assert str(error).isprintable()

    fuzz_made(odd_outline, check, 0.05)


LORA_ENDS = [
    ".lora_A.weight", ".lora_B.weight", ".lora_A.default.weight", ".lora_down.weight", ".lora_up.weight", ".alpha",
    ".lora.down.weight", ".lora_linear_layer.up.weight", ".dora_scale", ".lora_mid.weight", ".diff", "",
]  # fmt: skip
MODULES = ["transformer.transformer_blocks.0.attn.to_q", "lora_unet_double_blocks_0_img_attn_qkv", "base_model.model.x"]
LORA_CONFIG = {
    "transformer.lora_alpha": 8, "transformer.r": 4, "transformer.alpha_pattern": {"attn.to_q": 2},
    "lora_alpha": 1, "use_rslora": True, "alpha_pattern": {},
}  # fmt: skip


def odd_lora(random: Random) -> bytes:
    """A file with the factors of one to three modules, with a config or without, and up to three mishaps."""
    tensors: dict[str, np.ndarray] = {}
    for module in random.sample(MODULES, random.randint(1, 3)):
        down, up = random.choice([(0, 1), (3, 4), (6, 7)])
        tensors[module + LORA_ENDS[down]] = np.ones((2, 6), np.float32)
        tensors[module + LORA_ENDS[up]] = np.ones((4, 2), np.float32)
        if random.random() < 0.5:
            tensors[module + ".alpha"] = np.array(random.choice([1.0, 0.0, np.nan, -1.0]))
    for _ in range(random.randint(0, 3)):
        name = random.choice(list(tensors))
        values = tensors[name]
        if random.random() < 0.3:
            del tensors[name]
        if random.random() < 0.5:
            name = random.choice([*MODULES, "", ".", "x.0", "\x1b[2J"]) + random.choice(LORA_ENDS)
        if random.random() < 0.5:
            shape = [random.choice([0, 1, 2, 4]) for _ in range(random.randint(0, 5))]
            values = np.ones(shape, random.choice([np.float32, np.int64, np.uint8, np.bool_]))
        tensors[name] = values
    config = {"lora_adapter_metadata": odd_json(random, LORA_CONFIG).decode(errors="replace")}
    return save(tensors, metadata=config if random.random() < 0.5 else None)


@pytest.mark.filterwarnings("ignore:.*no adapter_config.json")
def test_odd_loras(tmp_path):
    path = tmp_path / "lora.safetensors"

    def check(content: bytes) -> None:
        write(path, content)
        with bounded(len(content)):
            try:
                for factors in read_lora(path):
                    assert factors.up().shape[1] == factors.down().shape[0] == factors.rank
                    assert math.isfinite(factors.scale)
            except CheckpointError as error:
                assert str(path) in str(error)
                assert str(error).isprintable()

    fuzz_made(odd_lora, check, 0.03)
