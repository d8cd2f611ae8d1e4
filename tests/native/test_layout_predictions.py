"""Legal layouts, what the cost model says of them, and ``edgedit plan --auto`` and ``--cluster``."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest

from edgedit import kernels
from edgedit.cli import main
from edgedit.config import AXES, ParallelConfig
from edgedit.degrees import flags
from edgedit.graph.forecast import prediction_exchange
from edgedit.models import shallow
from edgedit.models.diffusion_transformer import SUPPORTED_AXES
from edgedit.models.flux import FluxConfig, FluxTransformer
from edgedit.models.sd3 import SD3Config, SD3Transformer
from edgedit.tuning.cache import Measurements
from edgedit.tuning.cost_model import Seconds
from edgedit.tuning.machine import ANY, INTER, INTRA, Curve, Link, Machine, Rates
from edgedit.tuning.search import CostModel, Prediction, Work, by_preference, legal_layouts

FLUX = FluxConfig(
    num_layers=3, num_single_layers=4, num_attention_heads=3, attention_head_dim=16, axes_dims_rope=(4, 6, 6),
    joint_attention_dim=32, pooled_projection_dim=32, in_channels=16,
)  # fmt: skip
SD3 = SD3Config(
    num_layers=6, attention_head_dim=16, num_attention_heads=3, joint_attention_dim=32, caption_projection_dim=48,
    pooled_projection_dim=32, dual_attention_layers=(0, 1, 5), qk_norm="rms_norm",
)  # fmt: skip

CLUSTER = """
name = "small"
nodes = {nodes}
devices_per_node = 4
[device]
memory_gib = 40
memory_gb_per_s = 2000
node_us = 2
product_tflop_per_s = {{bf16 = 300}}
attention_tflop_per_s = 200
[link.intra]
gb_per_s = 200
[link.inter]
latency_us = 10
gb_per_s = 20
"""


def rates(flops: float = 1e9) -> Rates:
    return Rates(Curve(((8, flops), (64, 2 * flops))), Curve.flat(flops), 1e9, 1e-6, 1e-6, 1e-4)


def machine(link: Link, ranks: int = 8, memory: int | None = None) -> Machine:
    return Machine("m", {"f32": rates()}, {INTRA: {ANY: link}, INTER: {ANY: link}}, ranks, memory)


FAST, SLOW = Link(1e-7, 1e12), Link(1.0, 1e6)


def work(network=FluxTransformer, config=FLUX, *, batch=1, branches=1) -> Work:
    return Work(network, config, batch, 40, 40, 9, branches, "f32", {"kernels": "ggml"})


@pytest.mark.parametrize(("network", "config"), [(FluxTransformer, FLUX), (SD3Transformer, SD3)])
@pytest.mark.parametrize("degrees", [{}, {"ulysses": 3}])
def test_a_deep_network_is_the_weighted_sum_of_shallow_ones(monkeypatch, network, config, degrees):
    assert len(shallow.shallow_configs(config)) == 3
    told = CostModel(work(network, config), machine(FAST)).predict(degrees)
    monkeypatch.setattr("edgedit.models.shallow._FEW", 100)
    whole = CostModel(work(network, config), machine(FAST)).predict(degrees)
    assert told.step.compute == pytest.approx(whole.step.compute, rel=1e-9)
    assert told.step.exposed == pytest.approx(whole.step.exposed, rel=1e-9)
    assert told.weight_nbytes == whole.weight_nbytes
    assert told.memory_nbytes == pytest.approx(whole.memory_nbytes, rel=0.02)


@pytest.mark.parametrize(("world_size", "batch", "branches"), [(1, 1, 1), (6, 1, 2), (4, 3, 2)])
def test_legal_layouts_are_those_that_the_model_takes(world_size, batch, branches):
    asked = work(batch=batch, branches=branches)
    expected = set()
    for degrees in itertools.product(range(1, world_size + 1), repeat=len(AXES)):
        named = dict(zip(AXES, degrees, strict=True))
        used = [axis for axis in AXES if named[axis] > 1]
        if math.prod(degrees) != world_size or named["cfg"] > branches or named["dp"] > batch:
            continue
        try:
            config = ParallelConfig.for_plan(**{f"{axis}_degree": degree for axis, degree in named.items()})
            FluxTransformer.check_parallel(FLUX, config)
        except ValueError:
            continue
        assert set(used) <= set(SUPPORTED_AXES)
        expected.add(tuple(degrees))
    found = [tuple(layout.values()) for layout in legal_layouts(asked, world_size)]
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_more_ranks_help_on_fast_links_only():
    fast, slow = (CostModel(work(), machine(link)) for link in (FAST, SLOW))
    (alone,) = fast.ranked(1)
    assert fast.ranked(3)[0].step.total < alone.step.total < slow.ranked(3)[0].step.total
    assert slow.predict({"ulysses": 3}).step.exposed > 1


def test_branches_on_ranks_of_their_own_halve_the_work():
    model = CostModel(work(branches=2), machine(FAST))
    alone, shared = model.predict({}), model.predict({"cfg": 2})
    assert alone.step.compute == pytest.approx(2 * shared.step.compute)
    assert shared.step.exposed == pytest.approx(1e-7 + 40 * 16 * 4 / 1e12)


def test_a_batch_is_shared_by_replicas():
    model = CostModel(work(batch=3), machine(FAST))
    assert (
        model.predict({"dp": 2}).step.compute
        == CostModel(work(batch=2), machine(FAST)).predict({}).step.compute
    )


def sharded(asked):
    return replace(asked, options={**asked.options, "weight_residency": "sharded"})


@pytest.mark.parametrize("degrees", [{"ulysses": 3}, {"cfg": 2, "dp": 2}, {"tp": 3, "ring": 2}], ids=str)
def test_shared_weights_take_less_memory_and_more_exchange(monkeypatch, degrees):
    whole = work(batch=2, branches=2)
    told, apart = (CostModel(asked, machine(SLOW)).predict(degrees) for asked in (sharded(whole), whole))
    keepers = math.prod(degrees.values()) // degrees.get("tp", 1)
    assert told.weight_nbytes < (0.2 + 0.8 / keepers) * apart.weight_nbytes
    assert told.step.exposed > apart.step.exposed
    monkeypatch.setattr("edgedit.models.shallow._FEW", 100)
    deep = CostModel(sharded(whole), machine(SLOW)).predict(degrees)
    assert told.weight_nbytes == pytest.approx(deep.weight_nbytes, rel=0.01)
    assert told.step.total == pytest.approx(deep.step.total, rel=0.05)


def test_ranks_with_shares_of_weights_run_in_step():
    layouts = list(legal_layouts(sharded(work(batch=3, branches=3)), 6))
    assert layouts and all(layout["cfg"] == 1 and layout["dp"] in (1, 3) for layout in layouts)
    assert any(layout["cfg"] == 2 for layout in legal_layouts(sharded(work(branches=2)), 6))


@pytest.mark.parametrize("degrees", [{"ulysses": 3}, {"ring": 2}, {"kv_gather": 2}], ids=str)
def test_a_wire_of_blocks_is_faster_on_a_slow_link(degrees):
    config = replace(FLUX, attention_head_dim=32, axes_dims_rope=(8, 12, 12))
    took = [
        CostModel(replace(work(config=config), options={"kernels": "ggml", "wire_dtype": wire}), machine(SLOW))
        .predict(degrees)
        .step.total
        for wire in ("q8_0", "f16", "f32")
    ]
    assert took == sorted(took) and took[0] < took[-1]


def test_of_equally_fast_layouts_those_of_fewer_ranks_come_first():
    def predicted(ulysses, seconds, fits=True):
        degrees = {**dict.fromkeys(AXES, 1), "ulysses": ulysses}
        return Prediction(degrees, Seconds(seconds, 0.0), 1, 1, fits)

    slow, three, two, one = predicted(4, 2.0), predicted(3, 1.0), predicted(2, 1.015), predicted(1, 1.03)
    too_large = predicted(1, 0.5, fits=False)
    assert by_preference([slow, one, too_large, two, three]) == [two, three, one, slow, too_large]


def test_layouts_that_do_not_fit_come_last():
    free = CostModel(work(), machine(FAST)).ranked(2)
    least = min(prediction.memory_nbytes for prediction in free)
    tight = CostModel(work(), machine(FAST, memory=least)).ranked(2)
    assert [p.fits for p in tight] == sorted((p.fits for p in tight), reverse=True)
    assert any(not p.fits for p in tight)


def test_flags_are_those_of_the_command_line():
    assert flags({"ulysses": 2, "cfg": 2, "kv_gather": 3, "tp": 1}) == "--cfg 2 --kv-gather 3 --ulysses 2"
    assert flags({}) == ""


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Keeps machines for numbers of ranks where the commands look for them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = Measurements(kernels.chosen("auto"))

    def keep(**machines):
        for ranks, of in machines.items():
            kept.add(int(ranks.removeprefix("of_")), of)

    return keep


def plan(capsys, *words):
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_plan_auto_ranks_layouts_and_says_when_one_rank_is_faster(measured, capsys):
    alone, two = machine(FAST, 1), machine(SLOW, 2)
    measured(of_1=alone, of_2=two)
    words = ["--auto", "--ranks", "2", "--true-cfg-scale", "3"]
    report = json.loads(plan(capsys, *words, "--json"))
    assert report["chosen"] == report["layouts"][0]
    assert report["chosen"]["world_size"] == 1
    assert {layout["flags"] for layout in report["layouts"]} >= {"", "--cfg 2", "--ulysses 2"}
    times = [layout["step_s"] for layout in report["layouts"]]
    assert times == sorted(times)
    assert "1 rank is faster here" in plan(capsys, *words)
    measured(of_2=replace(two, links={INTRA: {ANY: FAST}}))
    report = json.loads(plan(capsys, *words, "--json"))
    assert report["chosen"]["world_size"] == 2
    assert "with one rank" in report["notes"][0]


def test_a_type_that_was_not_measured_is_said(measured, capsys):
    measured(of_1=machine(FAST, 1))
    assert "q8_0 weights were not measured; rates are those of f32" in plan(
        capsys, "--auto", "--ranks", "1", "--dtype", "q8_0"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--auto", "--ranks", "2"], "was not measured yet; run: edgedit tune"),
        (["--auto", "--ulysses", "2"], "--auto chooses the layout, but --ulysses 2 is given too"),
        (["--auto", "--sp", "2"], "but --sp 2 is given too"),
        (["--ranks", "2"], "--ranks 2 needs --auto"),
        (["--auto", "--ranks", "0"], "--ranks is 0; legal: with --auto, 1 or more"),
    ],
)
def test_what_cannot_be_predicted_is_refused(measured, words, said, capsys):
    assert main(["plan", *words]) == 2
    assert said in capsys.readouterr().err


def cluster(tmp_path, nodes=2):
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER.format(nodes=nodes))
    return ["--cluster", str(path), "--model", "flux-schnell", "--dtype", "bf16"]


def test_a_cluster_that_is_not_there(tmp_path, capsys):
    words = cluster(tmp_path)
    report = json.loads(
        plan(capsys, *words, "--cfg", "2", "--ulysses", "4", "--true-cfg-scale", "2", "--json")
    )
    assert [layout["flags"] for layout in report["layouts"]] == ["--cfg 2 --ulysses 4", ""]
    assert report["chosen"]["step_s"] < report["layouts"][1]["step_s"]
    assert report["nodes"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert report["links"] == {"ulysses": "intra", "cfg": "inter"}
    text = plan(capsys, *words, "--cfg", "2", "--ulysses", "4")
    assert "node 1: ranks 4-7" in text and "ulysses: inside nodes" in text and "cfg: across nodes" in text


def test_more_ranks_than_devices_are_refused(tmp_path, capsys):
    assert main(["plan", *cluster(tmp_path), "--ulysses", "12"]) == 2
    assert "12 ranks take 3 nodes with 4 on each; the cluster has 2 of 4 devices" in capsys.readouterr().err
    assert main(["plan", *cluster(tmp_path), "--auto", "--ranks", "9"]) == 2
    assert "legal: with --auto, 1 to 8" in capsys.readouterr().err


def test_layouts_that_need_more_nodes_are_not_chosen(tmp_path, capsys):
    """Of six devices of a node four Ulysses ranks leave two free, and so need a third node."""
    words = cluster(tmp_path)
    (tmp_path / "cluster.toml").write_text(CLUSTER.format(nodes=2).replace("node = 4", "node = 6"))
    report = json.loads(plan(capsys, *words, "--auto", "--ranks", "12", "--json"))
    found = [layout["flags"] for layout in report["layouts"]]
    assert "--ring 2 --ulysses 6" in found and "--ring 4 --ulysses 3" in found
    assert "--ring 3 --ulysses 4" not in found


def test_the_guidance_exchange_is_that_of_the_plan():
    """Three branches on two ranks: the first sends two predictions, of what is drawn alone."""
    asked = replace(work(branches=3), image_tokens=80)
    model = CostModel(asked, machine(FAST, 2))
    degrees = {**dict.fromkeys(AXES, 1), "cfg": 2}
    ((_, forecast), *_) = model._forecasts(degrees)
    exchange = prediction_exchange(forecast.graph, (asked.drawn_tokens, asked.image_tokens), 3, 2)
    channels = sum(math.prod(forecast.graph.nodes[i].shape) for i in forecast.graph.outputs) // asked.batch // 80
    assert exchange.bytes_sent == 4 * 2 * asked.batch * 40 * channels
    assert exchange.recv_counts == tuple(asked.batch * 40 * channels * held for held in (2, 1))


def test_thousands_of_ranks(tmp_path, capsys):
    layout = ["--dp", "512", "--cfg", "2", "--ulysses", "2"]
    words = [*cluster(tmp_path, nodes=512), "--num-images", "512", "--true-cfg-scale", "2", *layout, "--json"]
    report = json.loads(plan(capsys, *words))
    assert report["chosen"]["world_size"] == 2048
    assert len(report["nodes"]) == 512
    assert report["links"] == {"ulysses": "intra", "cfg": "intra", "dp": "inter"}


def test_of_many_ranks_those_that_share_much_more_are_not_looked_at(monkeypatch):
    asked = work(batch=4)
    every = CostModel(asked, machine(SLOW)).ranked(4)
    monkeypatch.setattr("edgedit.tuning.search.MANY_RANKS", 3)
    some = CostModel(asked, machine(SLOW)).ranked(4)
    assert some[0] == every[0]
    assert {layout.degrees["dp"] for layout in some} == {4, 2} < {layout.degrees["dp"] for layout in every}


def test_kernels_of_a_cluster_are_those_that_it_names(tmp_path, capsys):
    whole = json.loads(plan(capsys, *cluster(tmp_path), "--json"))
    fused = json.loads(plan(capsys, *cluster(tmp_path), "--json", "--kernels", "portable"))
    assert fused["chosen"]["step_s"] < whole["chosen"]["step_s"]  # fewer nodes


def test_generate_auto_on_one_rank_says_what_more_would_do(measured, capsys, tmp_path):
    words = ["generate", "-p", "a red apple", "--steps", "1", "--auto", "-o", str(tmp_path / "a.png")]
    measured(of_1=replace(machine(FAST, 1), links={}))
    assert main(words) == 0
    assert (
        "links between ranks were not measured yet; run: mpirun -n 2 edgedit tune" in capsys.readouterr().err
    )
    measured(of_2=machine(SLOW, 2))
    assert main(words) == 0
    assert "--auto: 1 rank is faster here: predicted" in capsys.readouterr().err
    measured(of_2=replace(machine(FAST, 2), rates={"f32": rates(1e12)}))
    assert main(words) == 0
    assert "with mpirun -n 2 edgedit generate ... --" in capsys.readouterr().err
