"""The maps of names: every tensor of full-size models has one original name, and comes back from it."""

from __future__ import annotations

from collections import Counter

import pytest
from tiny_shapes import clip_config, clip_shapes, t5_config, t5_shapes, vae_config, vae_shapes

from edgedit import presets
from edgedit.models.flux import FluxConfig, FluxNetwork
from edgedit.models.sd3 import SD3Config, SD3Network
from edgedit.weights.name_map import Target, architecture, architectures

PUBLISHED_VAE = vae_config(
    block_out_channels=[128, 256, 512, 512], layers_per_block=2, norm_num_groups=32, latent_channels=16,
    down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
)  # fmt: skip
CLIP_G = clip_config(hidden_size=1280, num_hidden_layers=32, intermediate_size=5120, projection_dim=1280)
T5_XXL = t5_config(d_model=4096, num_layers=24, num_heads=64, d_kv=64, d_ff=10240)


def network_shapes(preset):
    transformer = presets.read(preset)["transformer"]
    classes = {"FluxTransformer2DModel": (FluxConfig, FluxNetwork), "SD3Transformer2DModel": (SD3Config, SD3Network)}
    config, network = classes[transformer["_class_name"]]
    return {name: p.shape for name, p in network(config.from_dict(transformer)).named_parameters()}


# shapes of a full-size model, its spelling, and how many tensors the published file of that spelling has
MODELS = {
    "FLUX.1-dev": ("flux", "original", lambda: network_shapes("flux-dev"), 780),
    "FLUX.1-schnell": ("flux", "original", lambda: network_shapes("flux-schnell"), 776),
    "SD3 medium": ("sd3", "original", lambda: network_shapes("sd3-medium"), 491),
    "SD3.5 medium": ("sd3", "original", lambda: network_shapes("sd3.5-medium"), 665),
    "SD3.5 large": ("sd3", "original", lambda: network_shapes("sd3.5-large"), None),
    "VAE": ("autoencoder_kl", "original", lambda: vae_shapes(PUBLISHED_VAE), None),
    "CLIP-G": ("clip", "open_clip", lambda: clip_shapes(CLIP_G) | {"text_projection.weight": (1280, 1280)}, 389),
    "T5-XXL": ("t5", "llama.cpp", lambda: t5_shapes(T5_XXL), 219),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_maps_are_one_to_one(name):
    kind, spelling, shapes_of, count = MODELS[name]
    shapes = shapes_of()
    known = architecture(kind).spelling(spelling)
    sources = known.bind([]).sources(shapes)
    names = known.bind(sources)
    for source, targets in sources.items():
        assert names.targets(source) == targets, source
    reached = Counter(target.name for targets in sources.values() for target in targets)
    assert set(reached) == set(shapes)
    assert set(reached.values()) == {1}
    assert count in (None, len(sources))
    assert known.signature in sources
    for source, targets in sources.items():  # shares are whole rows, one after another
        assert [target.begin for target in targets[1:]] == [target.end for target in targets[:-1]], source
        rows = {shapes[target.name][0] / (target.end - target.begin) for target in targets}
        assert len(rows) == 1, f"{source}: shares of {[shapes[target.name] for target in targets]}"


def test_modules_have_names_too():
    names = architecture("flux").spelling("original").bind([])
    q, k, v, mlp = names.targets("single_blocks.3.linear1")
    assert q == Target("single_transformer_blocks.3.attn.to_q", 0, 1, 7)
    assert (k.begin, v.begin, mlp.begin, mlp.end) == (1, 2, 3, 7)
    assert names.targets("final_layer.adaLN_modulation.1") == [Target("norm_out.linear", swap=True)]
    assert names.targets("double_blocks.0.img_attn.nonsense") == []


def test_numbers_from_the_end_and_the_last_one_depend_on_the_network():
    vae = architecture("autoencoder_kl").spelling("original")
    keys = [f"decoder.up.{level}.block.0.conv1.weight" for level in range(3)]
    (first,) = vae.bind(keys).targets(keys[0])
    assert first.name == "decoder.up_blocks.2.resnets.0.conv1.weight"
    sd3 = architecture("sd3").spelling("original")
    keys = [f"joint_blocks.{i}.context_block.adaLN_modulation.1.weight" for i in range(11)]
    swapped = [sd3.bind(keys).targets(key)[0].swap for key in keys]
    assert swapped == [False] * 10 + [True]


def test_spellings_are_told_apart_by_their_signatures():
    signatures = [spelling.signature for kind in architectures() for spelling in kind.spellings]
    assert len(set(signatures)) == len(signatures)
