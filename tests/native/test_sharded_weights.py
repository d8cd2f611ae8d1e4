"""Ranks that keep shares of the weights and gather each block ahead of use: the bits of ranks that have them whole."""

from __future__ import annotations

import ctypes
import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from kernel_layers import Values
from row_kernels import ROW_KERNELS
from tiny import write_flux_pipeline, write_flux_transformer
from tiny_sd3 import write_sd3_pipeline, write_sd3_transformer

from edgedit import _native
from edgedit.cli import main
from edgedit.config import ParallelConfig
from edgedit.graph.planner import plan
from edgedit.models import random_flux, random_sd3
from edgedit.models.flux import FluxConfig, FluxNetwork, FluxTransformer
from edgedit.models.sd3 import SD3Transformer
from edgedit.models.tensor_parallel import TensorGroup
from edgedit.models.weight_residency import keep_shares
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.pipeline import Pipeline
from edgedit.weights.loader import load

FAMILIES = {
    "flux": (FluxTransformer, write_flux_transformer, random_flux),
    "sd3": (SD3Transformer, write_sd3_transformer, random_sd3),
}
SHAPE = {"rows": 3, "columns": 3, "text_tokens": 1, "batch": 2}
LAYOUTS = [
    {"ulysses": 3},
    {"kv_gather": 2},
    {"tp": 2, "ulysses": 2},
    {"ulysses": 2, "cfg": 2},
    {"ring": 2, "dp": 2},
]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    """Class, directory and arguments of a call."""
    network, write, random = FAMILIES[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    dual = {"dual_attention_layers": [0], "qk_norm": "rms_norm"} if request.param == "sd3" else {}
    write(directory, num_attention_heads=5, **dual)
    return network, directory, random.request_of(network.read_config(directory), **SHAPE)


def on_ranks(model, layout, dtype="f32", **options):
    """Per rank, the output and the bytes of weights that it keeps."""
    network, directory, arguments = model

    def run(context):
        ranked = network.from_pretrained(directory, dtype, threads=1, parallel=context)
        try:
            return ranked(**arguments), ranked.weights.nbytes
        finally:
            ranked.close()

    degrees = {f"{axis}_degree": degree for axis, degree in layout.items()}
    return ParallelContext.local(int(np.prod(list(layout.values()))), run, **degrees, **options)


def assert_same_bits(model, layout, **options):
    whole, sharded = (on_ranks(model, layout, weight_residency=r, **options) for r in ("whole", "sharded"))
    keepers = int(np.prod([degree for axis, degree in layout.items() if axis != "tp"]))
    for (expected, all_nbytes), (output, nbytes) in zip(whole, sharded, strict=True):
        assert np.isfinite(expected).all()
        np.testing.assert_array_equal(output, expected)
        assert nbytes < (1 / keepers + 0.15) * all_nbytes


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_gives_the_same_bits(model, layout):
    assert_same_bits(model, layout)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [("q8_0", {}), ("bf16", {}), ("f32", {"ops": "generic"}), ("q8_0", {"kernels": "ggml"})],
    ids=str,
)
def test_every_form_of_weights_gives_the_same_bits(model, dtype, options):
    assert_same_bits(model, {"ulysses": 2}, dtype=dtype, **options)


def network_of(rank, size, **changes):
    """A network whose blocks `size` ranks keep between them."""
    network = FluxNetwork(FluxConfig(num_layers=1, num_single_layers=1, num_attention_heads=1, **changes))
    keep_shares(network, [*network.modulations(), *network.blocks()], TensorGroup("weights", rank, size))
    return network


@pytest.mark.parametrize("size", [2, 5])
def test_shares_make_up_what_one_rank_would_hold(size):
    """Packed weights; a rank reads nothing of those of which it keeps nothing."""
    names = {name: p.shape for name, p in network_of(0, 1).named_parameters()}
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in names.items()}
    family = _native.kernels.best()

    class Recorded(Values):
        def read(self, key):
            read.add(key)
            return super().read(key)

    alone = network_of(0, 1)
    read: set[str] = set()
    kept_whole = load(alone, Recorded(**values), "bf16", kernels=family)
    whole = {name: bytes_of(p.tensor) for name, p in alone.named_parameters()}
    shares, readers = {}, []
    for rank in range(size):
        network, read = network_of(rank, size), set()
        store = load(network, Recorded(**values), "bf16", kernels=family)
        for block in network.weight_blocks.values():
            shares.setdefault(block.name, []).append(bytes_of(block.shard)[: block.layout.count])
            layouts = block.layout
            for name in block.parameters:
                nbytes = len(whole[name])
                assert (name in read) == bool(layouts.kept(name, nbytes))
        readers.append(read)
        store.close()
    for block in network.weight_blocks.values():
        together = b"".join(shares[block.name])
        assert len(block.parameters) > 0
        for name in block.parameters:
            begin = block.layout.offsets[name]
            assert begin % 64 == 0
            assert together[begin : begin + len(whole[name])] == whole[name], name
    assert set.intersection(*readers) < set.union(*readers)
    kept_whole.close()


def bytes_of(tensor):
    return ctypes.string_at(tensor.pointer.contents.data, tensor.nbytes)


@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_a_block_arrives_during_the_one_before_it_and_no_third_is_there(name):
    network, _, _ = FAMILIES[name]
    config = (
        network.config_class(num_layers=4)
        if name == "sd3"
        else FluxConfig(num_layers=3, num_single_layers=3, num_attention_heads=2)
    )
    parallel = ParallelConfig.for_plan(ulysses_degree=2, weight_residency="sharded")
    shape = {"batch": 1, "image_tokens": 64, "text_tokens": 16}
    graph = network.describe(config, **shape, compute_dtype="f32", parallel=parallel)
    schedule = plan(graph.nodes, graph.collectives, graph.outputs, degree=2)
    gathers = [i for i, c in enumerate(graph.collectives) if c.axis == "weights"]
    blocks = [graph.collectives[i].name.removesuffix(".weights") for i in gathers]
    assert len(blocks) == (4 if name == "sd3" else 6)
    position = {index: at for at, index in enumerate(schedule.order)}
    root = [node.index if node.base is None else None for node in graph.nodes]
    for node in graph.nodes:
        if node.base is not None:
            root[node.index] = root[node.base]
    lives = []
    for number, i in enumerate(gathers):
        start = graph.collectives[i].start
        readers = [node.index for node in graph.nodes if start in {root[source] for source in node.inputs}]
        lives.append((position[start], max(position[reader] for reader in readers if reader in position)))
        if number:
            inside = [graph.nodes[index].name for index in schedule.overlapped[i].nodes]
            heavy = [node for node in inside if node.endswith(".linear")]
            assert any(node.startswith(f"{blocks[number - 1]}.") for node in heavy), inside
    for (_, ended), (began, _) in zip(lives, lives[2:], strict=False):
        assert ended < began


def test_a_plan_tells_what_is_kept_and_what_is_gathered(capsys):
    words = ["plan", "--model", "flux-dev", "--ulysses", "4", "--dtype", "bf16", "--kernels", ROW_KERNELS, "--json"]
    reports = []
    for more in ([], ["--shard-weights"]):
        assert main([*words, *more]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    whole, sharded = reports
    kept = [sum(report["memory"][0]["weights"].values()) for report in reports]
    assert kept[1] == pytest.approx(kept[0] / 4, rel=0.015)
    # all memory for weights, with room for two blocks while they are used, is 0.31 of one rank's
    totals = [report["memory"][0]["total"] for report in reports]
    assert totals[1] - (totals[0] - kept[0]) < 0.31 * kept[0]
    # 24 C^2 of each of 19 double blocks and 12 C^2 of 38 single ones, a quarter to each of three ranks
    gathered = 2 * (24 * 19 + 12 * 38) * 3072**2 // 4 * 3
    more = sharded["bytes_sent_per_step"][0] - whole["bytes_sent_per_step"][0]
    assert more == pytest.approx(gathered, rel=1e-4)


@pytest.mark.parametrize(
    "layout", [{"ulysses": 2, "cfg": 2}, {"tp": 2, "cfg": 2}, {"ulysses": 2, "dp": 2}], ids=str
)
def test_pictures_are_the_same_and_bytes_as_planned(tmp_path, capsys, layout):
    directory = write_flux_pipeline(tmp_path / "model", heads=3, num_layers=1, num_single_layers=2)
    sizes = ["--width", "20", "--height", "12", "--steps", "2", "--max-sequence-length", "5", "--shard-weights"]
    flags = [word for axis, degree in layout.items() for word in (f"--{axis}", str(degree))]
    flags += ["--num-images", str(layout.get("dp", 1)), "--true-cfg-scale", "2"]
    assert main(["plan", "--model", str(directory), *sizes, *flags, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)

    def draw(context):
        with Pipeline.from_pretrained(directory, threads=1, parallel=context) as pipeline:
            call = {"num_inference_steps": 2, "height": 12, "width": 20, "max_sequence_length": 5, "seed": 0}
            # of two replicas, one draws what it is to stay away from
            result = pipeline(["a cat", "a dog"], "a dog", true_cfg_scale=2.0, batch_size=1, **call)
        return result, pipeline.transformer.weights.nbytes

    size, degrees = int(np.prod(list(layout.values()))), {f"{axis}_degree": n for axis, n in layout.items()}
    whole = ParallelContext.local(size, draw, **degrees)
    results = ParallelContext.local(size, draw, **degrees, weight_residency="sharded")
    for (result, held), (expected, all_held), memory in zip(results, whole, report["memory"], strict=True):
        np.testing.assert_array_equal(result.latents, expected.latents)
        assert held < 0.8 * all_held
        assert sum(memory["weights"].values()) <= held < 1.02 * sum(memory["weights"].values())
    rounds = 2 // layout.get("dp", 1)  # of one picture each
    assert results[0][0].bytes_sent == [rounds * nbytes for nbytes in report["bytes_sent"]]


def test_guidance_that_ranks_cannot_run_in_step_is_refused(tmp_path, capsys):
    directory = write_sd3_pipeline(tmp_path / "model", heads=2, with_t5=False)
    call = {"num_inference_steps": 2, "height": 12, "width": 20, "seed": 0, "skip_guidance_layers": [1]}

    def draw(context):
        with Pipeline.from_pretrained(directory, threads=1, parallel=context) as pipeline:
            return pipeline("a cat", **call).latents

    with pytest.raises(ValueError, match="sharded weights over cfg 2: a branch leaves layers out"):
        ParallelContext.local(2, draw, cfg_degree=2, weight_residency="sharded")
    with pytest.raises(ValueError, match="sharded weights over dp 2: one picture gives some ranks more than others"):
        ParallelContext.local(2, draw, dp_degree=2, weight_residency="sharded")
    ranks = ParallelContext.local(2, draw, ulysses_degree=2, weight_residency="sharded")
    np.testing.assert_array_equal(ranks[0], ParallelContext.local(2, draw, ulysses_degree=2)[0])


# In each of four threads that are ranks; what the process has for all of them, beside what one rank alone has.
MEMORY = """
import ctypes, gc, json
import numpy as np
from edgedit.models.flux import FluxConfig
from edgedit.models.random_flux import RandomCheckpoint, request_of, transformer_of
from edgedit.parallel.context import ParallelContext

RandomCheckpoint.read = lambda self, key: np.full(self.shape(key), 0.01, np.float32)  # no time for random ones

def anonymous():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

def config(blocks):
    return FluxConfig(num_layers=blocks, num_single_layers=2 * blocks, num_attention_heads=6, joint_attention_dim=64,
        attention_head_dim=32, axes_dims_rope=(8, 12, 12), pooled_projection_dim=64)

def run(context, blocks):
    model = transformer_of(config(blocks), "f32", 1, context)
    model(**request_of(config(blocks), 2, 2, 4))
    context.group("world").barrier()
    return model

def growth(size, **options):
    ParallelContext.local(size, lambda context: run(context, 1).close(), **options)
    before = anonymous()
    models = ParallelContext.local(size, lambda context: run(context, 16), **options)
    grown = anonymous() - before
    for model in models:
        model.close()
    return grown

print(json.dumps({"one": growth(1), "four": growth(4, ulysses_degree=4, weight_residency="sharded")}))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no /proc/self/smaps_rollup")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no malloc_trim")
def test_four_ranks_take_about_a_third_of_one_rank_each():
    """Weights, blocks on their way, and activations."""
    result = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["one"] > 4 * 38e6
    assert found["four"] / 4 <= 0.35 * found["one"], found
