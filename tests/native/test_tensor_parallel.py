"""Transformers whose weights ranks share: what one rank computes, from the slices that each rank has."""

from __future__ import annotations

import json

import numpy as np
import pytest
from kernel_layers import Values
from tiny import write_flux_pipeline, write_flux_transformer
from tiny_sd3 import write_sd3_transformer
from tiny_shapes import flux_config

from edgedit import _native
from edgedit.cli import main
from edgedit.config import ParallelConfig, check_heads
from edgedit.graph.planner import plan
from edgedit.models import random_flux, random_sd3
from edgedit.models.flux import FluxConfig, FluxNetwork, FluxTransformer
from edgedit.models.layers import Linear, Run
from edgedit.models.sd3 import SD3Transformer
from edgedit.models.tensor_parallel import TensorGroup, share
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline
from edgedit.weights.loader import load

TOLERANCE = 1e-5
FAMILIES = {
    "flux": (FluxTransformer, write_flux_transformer, random_flux),
    "sd3": (SD3Transformer, write_sd3_transformer, random_sd3),
}
# heads that do not divide; the image is three tokens high and wide, the text has tokens for one rank only
HEADS = 5
SHAPE = {"rows": 3, "columns": 3, "text_tokens": 1, "batch": 2}
# kernels that keep activations in f32 whatever the weights are: only sums differ from those of one rank
F32_ACTIVATIONS = "avx2" if "avx2" in _native.kernels.families() else "ggml"


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    """Class, directory, arguments of a call, and what one rank makes of them."""
    network, write, random = FAMILIES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    dual = {"dual_attention_layers": [0], "qk_norm": "rms_norm"} if request.param == "sd3" else {}
    write(directory, num_attention_heads=HEADS, **dual)
    arguments = random.request_of(network.read_config(directory), **SHAPE)
    alone = network.from_pretrained(directory, threads=1)
    expected = alone(**arguments)
    alone.close()
    return network, directory, arguments, expected


def on_ranks(network, directory, arguments, dtype="f32", **options):
    """The output of each rank."""
    size = int(np.prod([degree for name, degree in options.items() if name.endswith("_degree")]))

    def run(context):
        ranked = network.from_pretrained(directory, dtype, threads=1, parallel=context)
        try:
            return ranked(**arguments)
        finally:
            ranked.close()

    return ParallelContext.local(size, run, **options)


def assert_alike(outputs, expected, tolerance=TOLERANCE):
    assert np.isfinite(expected).all()
    for output in outputs:
        np.testing.assert_array_equal(output, outputs[0])
        np.testing.assert_allclose(output, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("ops", ["fused", "generic"])
@pytest.mark.parametrize(("tp", "ulysses"), [(2, 1), (3, 1), (5, 1), (2, 2)])
def test_ranks_that_share_weights_compute_what_one_does(model, tp, ulysses, ops):
    network, directory, arguments, expected = model
    outputs = on_ranks(network, directory, arguments, tp_degree=tp, ulysses_degree=ulysses, ops=ops)
    assert_alike(outputs, expected)


@pytest.mark.parametrize(
    ("dtype", "tp", "heads", "head_dim"), [("q8_0", 3, 5, 32), ("q4_k", 2, 2, 256), ("bf16", 2, 3, 32)]
)
def test_weights_in_blocks_are_cut_between_them(tmp_path, dtype, tp, heads, head_dim):
    """Every head fills whole blocks, so that all ranks together have the quantised values of one."""
    axes = {"attention_head_dim": head_dim, "axes_dims_rope": [head_dim // 2, head_dim // 4, head_dim // 4]}
    blocks = {"num_layers": int(head_dim == 32), "num_single_layers": 1}
    write_flux_transformer(tmp_path, num_attention_heads=heads, **axes, **blocks)
    arguments = random_flux.request_of(FluxTransformer.read_config(tmp_path), **SHAPE)
    (expected,) = on_ranks(FluxTransformer, tmp_path, arguments, dtype, tp_degree=1, kernels=F32_ACTIVATIONS)
    outputs = on_ranks(FluxTransformer, tmp_path, arguments, dtype, tp_degree=tp, kernels=F32_ACTIVATIONS)
    assert_alike(outputs, expected)


def test_weights_whose_blocks_would_be_cut_are_f16_and_that_is_said(tmp_path, capsys):
    """Eight heads of 128 channels, in blocks of 256."""
    config = flux_config(num_attention_heads=8, attention_head_dim=128, axes_dims_rope=[32, 48, 48])
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["plan", "--model", str(tmp_path), "--dtype", "q4_k", "--json", "--tp"]
    reports = {}
    for size in ("4", "8"):
        assert main([*words, size]) == 0
        reports[size] = json.loads(capsys.readouterr().out)
    assert reports["4"]["notes"] == []
    # two outputs of attention in each double block, and the one product behind attention and MLP in each single one
    doubles, singles = config["num_layers"], config["num_single_layers"]
    (note,) = reports["8"]["notes"]
    assert note.startswith(f"{2 * doubles + singles} weights are f16 instead of q4_k, whose blocks of 256 ")
    f16 = {size: report["memory"][0]["weights"].get("f16", 0) for size, report in reports.items()}
    assert f16["8"] - f16["4"] == 2 * (2 * doubles + 5 * singles) * 1024**2 / 8


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("split", ["rows", "columns"])
def test_shares_make_up_the_whole_weight(split, size):
    """Two runs, of heads and of single channels, as behind a single block of FLUX."""
    runs = [Run(4 * 6, 6), Run(70)]
    channels = sum(run.channels for run in runs) if split == "rows" else runs[0].channels
    weight = np.random.default_rng(size).standard_normal((9, channels), dtype=np.float32)
    weight = weight if split == "rows" else weight.T.copy()
    held = []
    for rank in range(size):
        layer = Linear(weight.shape[1], weight.shape[0], split=split, runs=runs if split == "rows" else runs[:1])
        share(layer, TensorGroup("tp", rank, size), "f32")
        bias = np.arange(len(weight), dtype=np.float32)
        store = load(layer, Values(weight=weight, bias=bias))
        held.append((values_of(layer.weight), values_of(layer.bias)))
        store.close()
    whole = np.concatenate([mine for mine, _ in held], axis=1 if split == "rows" else 0)
    heads, rest = np.array_split(np.arange(4), size), None
    if split == "rows":
        # each rank has heads, then single channels
        heads = [np.concatenate([np.arange(6 * h, 6 * h + 6) for h in own]) for own in heads]
        rest = np.array_split(np.arange(24, 94), size)
        order = np.concatenate([np.concatenate(pair) for pair in zip(heads, rest, strict=True)])
        np.testing.assert_array_equal(whole, weight[:, order])
        assert all(len(bias) == len(weight) for _, bias in held)
    else:
        np.testing.assert_array_equal(whole, weight)
        np.testing.assert_array_equal(np.concatenate([bias for _, bias in held]), bias)
        assert [len(mine) for mine, _ in held] == [6 * len(own) for own in heads]


def values_of(parameter):
    import ctypes

    tensor = parameter.tensor
    data = ctypes.string_at(tensor.pointer.contents.data, tensor.nbytes)
    return np.frombuffer(data, np.float32).reshape(tensor.shape)


@pytest.mark.parametrize("split", ["rows", "columns"])
def test_a_rank_reads_nothing_but_its_share(split):
    """Quantising refuses what is not finite: the shares of others are poisoned."""
    weight = np.full((128, 128), np.nan, np.float32)
    own = weight[:, 64:] if split == "rows" else weight[64:]
    own[:] = np.random.default_rng(0).standard_normal(own.shape)
    layer = Linear(128, 128, bias=False, split=split)
    share(layer, TensorGroup("tp", 1, 2), "q8_0")
    load(layer, Values(weight=weight), "q8_0").close()


@pytest.mark.parametrize(
    ("tp", "ulysses", "heads"), [(2, 4, {7}), (4, 4, {4, 3}), (3, 2, {10, 9})], ids=str
)
def test_heads_of_a_rank_are_split_again_by_ulysses(tp, ulysses, heads):
    """56 heads."""
    config = FluxConfig(
        num_attention_heads=56, attention_head_dim=6, axes_dims_rope=(2, 2, 2), num_layers=1, num_single_layers=1
    )
    per_rank = {}
    for rank in range(tp * ulysses):
        parallel = ParallelConfig.for_plan(tp_degree=tp, ulysses_degree=ulysses, rank=rank, ops="fused")
        shape = {"batch": 1, "image_tokens": 16, "text_tokens": 8}
        graph = FluxTransformer.describe(config, **shape, compute_dtype="f32", parallel=parallel)
        attention = [node for node in graph.nodes if node.op in ("attention", "flash_attn_ext")]
        (per_rank[rank],) = {node.shape[2] for node in attention}
    assert set(per_rank.values()) == heads
    assert sum(per_rank.values()) == 56


def test_ranks_of_uneven_shares_run_in_the_same_order():
    config = FluxConfig(num_attention_heads=5, num_layers=2, num_single_layers=2)
    orders = set()
    for rank in range(4):
        parallel = ParallelConfig.for_plan(tp_degree=2, ulysses_degree=2, rank=rank)
        shape = {"batch": 1, "image_tokens": 17, "text_tokens": 3}
        graph = FluxTransformer.describe(config, **shape, compute_dtype="f32", parallel=parallel)
        orders.add(plan(graph.nodes, graph.collectives, graph.outputs, degree=4).order)
    assert len(orders) == 1


def test_more_ranks_than_heads_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match=r"tp_degree 6 is more than the 5 heads .*1 to 5.*--tp 5 on 10 ranks"):
        check_heads(5, ParallelConfig.for_plan(tp_degree=6, cfg_degree=2), "flux")
    with pytest.raises(ValueError, match=r"ulysses_degree 3 is more than the 2 heads"):
        check_heads(5, ParallelConfig.for_plan(tp_degree=2, ulysses_degree=3), "flux")


@pytest.mark.parametrize("layout", [{"tp": 2}, {"tp": 3, "cfg": 2}, {"tp": 2, "ulysses": 2}], ids=str)
def test_what_is_sent_is_what_was_planned(tmp_path, capsys, layout):
    directory = write_flux_pipeline(tmp_path / "model", heads=5, num_layers=1, num_single_layers=1)
    sizes = ["--width", "20", "--height", "12", "--steps", "3", "--max-sequence-length", "5"]
    flags = [word for axis, degree in layout.items() for word in (f"--{axis}", str(degree))]
    assert main(["plan", "--model", str(directory), *sizes, *flags, "--true-cfg-scale", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)

    def draw(context):
        with Pipeline.from_pretrained(directory, threads=1, parallel=context) as pipeline:
            call = {"num_inference_steps": 3, "height": 12, "width": 20, "max_sequence_length": 5, "seed": 0}
            result = pipeline("a cat", "a dog", true_cfg_scale=2.0, **call)
        return result.bytes_sent, pipeline.transformer.weights.nbytes

    size = int(np.prod(list(layout.values())))
    results = ParallelContext.local(size, draw, **{f"{axis}_degree": n for axis, n in layout.items()})
    assert results[0][0] == report["bytes_sent"]
    for memory, (_, held) in zip(report["memory"], results, strict=True):
        assert sum(memory["weights"].values()) <= held < 1.01 * sum(memory["weights"].values())


def test_two_ranks_hold_half_of_flux_each():
    """All but what is small: the first and last layers and the embeddings."""
    config = FluxConfig(guidance_embeds=True)
    networks = [FluxNetwork(config) for _ in range(2)]
    share(networks[1], TensorGroup("tp", 1, 2), "bf16")
    whole, half = (
        sum(np.prod(p.part.shape(p.shape) if p.part else p.shape) for _, p in network.named_parameters())
        for network in networks
    )
    assert half / whole == pytest.approx(0.5, abs=0.005)


@pytest.mark.parametrize(("tp", "tolerance"), [(2, TOLERANCE), (3, 1e-3)])
def test_quantised_files_are_cut_between_blocks_or_decoded(tmp_path, tp, tolerance):
    """Sixteen heads of 16 channels in blocks of 32: halves end with a block, thirds do not and are f16."""
    write_flux_transformer(tmp_path, num_attention_heads=16, num_layers=1, num_single_layers=1)
    path = tmp_path / "flux.gguf"
    assert main(["convert", str(tmp_path), str(path), "--type", "q8_0", "--quiet"]) == 0
    arguments = random_flux.request_of(FluxTransformer.read_config(tmp_path), **SHAPE)
    options = {"dtype": "auto", "kernels": F32_ACTIVATIONS}
    (expected,) = on_ranks(FluxTransformer, path, arguments, tp_degree=1, **options)
    outputs = on_ranks(FluxTransformer, path, arguments, tp_degree=tp, **options)
    assert_alike(outputs, expected, tolerance)
