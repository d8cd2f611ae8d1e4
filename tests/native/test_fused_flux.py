"""The FLUX transformer with fused operators against the same network of stock nodes, and what `plan` says of them."""

import json

import numpy as np
import pytest
from test_flux import models, on_ranks, request  # noqa: F401  (models is a fixture)

from edgedit.cli import main
from edgedit.config import ParallelConfig
from edgedit.graph.planner import plan
from edgedit.graph.registry import OPERATORS
from edgedit.kernels import Offer
from edgedit.models.flux import FluxConfig, FluxTransformer
from edgedit.parallel.context import ParallelContext

FUSED = {"pack", "receive", "rope_table", "modulate"}
# of operators that take one node, with products of ggml's and with products of ours
EXPECTED = {"ggml": FUSED | {"gated_residual"}, "portable": FUSED | {"linear", "attention"}}
COPIES = {"cont", "cpy", "dup", "concat"}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_fused_equals_generic(models, size):  # noqa: F811
    directory = models(7, guidance_embeds=True)
    config = FluxTransformer.read_config(directory)
    requests = [request(config), request(config, height=3, width=1, text=2, batch=3)]
    fused = on_ranks(directory, size, *requests, ops="fused")
    generic = on_ranks(directory, size, *requests, ops="generic")
    for mine, theirs in zip(fused, generic, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert 0 < np.abs(a - b).max() <= 1e-5  # not one and the same graph


@pytest.mark.parametrize("wire", ["f16", "bf16"])
def test_a_narrow_wire_rounds_alike(models, wire):  # noqa: F811
    directory = models(12)
    config = FluxTransformer.read_config(directory)
    (fused, generic) = (
        on_ranks(directory, 3, request(config), ops=ops, wire_dtype=wire)[0][0]
        for ops in ("fused", "generic")
    )
    bound = {"f16": 2e-3, "bf16": 2e-2}[wire]
    assert np.linalg.norm(fused - generic) / np.linalg.norm(generic) < bound


def described(config=FluxConfig(num_layers=1, num_single_layers=1), size=2, batch=1, dtype="f32", **options):  # noqa: B008
    parallel = ParallelConfig(ulysses_degree=size, world_size=size, local_world_size=size, **options)
    return FluxTransformer.describe(
        config, batch=batch, image_tokens=64, text_tokens=9, compute_dtype=dtype, parallel=parallel
    )


@pytest.mark.parametrize("kernels", EXPECTED)
@pytest.mark.parametrize("size", [1, 2])
def test_the_choice_of_operators_makes_the_graph(size, kernels):
    fused, generic = described(size=size, kernels=kernels), described(size=size, ops="generic")
    ops = {node.op for node in fused.nodes} & set(OPERATORS)
    assert ops == EXPECTED[kernels] - ({"receive"} if size == 1 else set())
    assert not {node.op for node in generic.nodes} & set(OPERATORS)
    assert len(fused.nodes) < len(generic.nodes)
    schedules = [plan(d.nodes, d.collectives, d.outputs, degree=size) for d in (fused, generic)]
    assert schedules[0].bytes_sent == schedules[1].bytes_sent
    assert abs(schedules[0].flops / schedules[1].flops - 1) < 0.01
    assert (schedules[0].digest == schedules[1].digest) == (
        size == 1
    )  # without collectives nothing is exchanged


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8_0"])
@pytest.mark.parametrize("kernels", ["avx512", "avx2", "portable"])
def test_a_step_copies_nothing_but_text_and_image_into_one(kernels, dtype, size, batch):
    """Only single blocks of several pictures over several ranks copy: what comes back stands stream by stream."""
    if kernels not in Offer.here().usable:
        pytest.skip(f"this processor has no {kernels} kernels")
    config = FluxConfig(num_layers=2, num_single_layers=3, num_attention_heads=4)
    d = described(config, size, batch, dtype, kernels=kernels)
    copies = [node.name for node in d.nodes if node.op in COPIES]
    rejoined = (
        [f"single_transformer_blocks.{i}.attn.concat" for i in range(3)] if min(size, batch) > 1 else []
    )
    assert copies == ["concat", *rejoined]


def test_plan_shows_the_choice_and_why_it_fell_back(capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "_class_name": "FluxTransformer2DModel", "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 1026,
        "num_attention_heads": 2, "axes_dims_rope": [2, 512, 512],
    }))  # fmt: skip
    arguments = ["plan", "--model", str(config), "--ulysses", "2"]
    assert main(arguments) == 0
    assert "note: ops: pack is generic: head dim 1026; at most 1024" in capsys.readouterr().out
    assert main([*arguments, "--ops", "generic", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ops"] == "generic" and not shown["notes"]


def test_ranks_compare_the_choice(models):  # noqa: F811
    lines = ParallelConfig(ops="auto").shared_lines()
    assert "ops = fused" in lines and "ops = generic" in ParallelConfig(ops="generic").shared_lines()


def test_one_rank_and_three_give_the_same_bits_where_sums_do():
    """Attention sees the same head-major planes on any number of ranks."""
    results = []

    def run(context):
        from edgedit.graph.backend import CpuBackend
        from edgedit.graph.builder import GraphBuilder
        from edgedit.graph.executor import Executor
        from edgedit.sequence.local import Local
        from edgedit.sequence.strategy import Stream
        from edgedit.sequence.ulysses import Ulysses

        group = context.group("ulysses")
        strategy = Ulysses(group.size, group.rank) if group.size > 1 else Local()
        b = GraphBuilder("attention")
        x = b.input("x", (1, 70, 6, 16))
        share = strategy.split(b, x, 1)
        (out,) = strategy.attention(b, [Stream(share, share, share, 70)])
        b.output("out", b.contiguous(strategy.gather(b, out, 70)))
        values = np.random.default_rng(0).standard_normal((1, 70, 6, 16), dtype=np.float32)
        results.append(Executor(b, CpuBackend(1), context, degree=group.size).run({"x": values})["out"])

    for size in (1, 3):
        ParallelContext.local(size, run, ulysses_degree=size)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
