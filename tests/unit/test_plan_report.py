"""What `edgedit plan` says of a layout, on hand-made graphs: no ggml, no MPI, no weights."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from planner_programs import Program

from edgedit.errors import EdgeditError
from edgedit.graph.blocks import Block, blocks_of, short_name, work_in
from edgedit.graph.description import GraphDescription
from edgedit.graph.forecast import Forecast, RankForecast, as_json
from edgedit.graph.page import as_text, ranges
from edgedit.graph.units import binary, flop
from edgedit.parallel.mesh import Mesh

BLOCKS = 6


def rank_forecast(tokens: int, rank: int = 0) -> RankForecast:
    """A network of equal blocks, each with one exchange and an MLP that fits inside its flight."""
    p = Program(rank)
    x = p.op("embed_norm", p.op("embed", shape=(tokens,)))
    for block in range(BLOCKS):
        q = p.matmul(f"blocks.{block}.to_q.linear", x)
        counts = {"send_counts": (2, tokens // 2), "recv_counts": (2, 2), "total_count": 8}
        received = p.exchange(f"blocks.{block}.exchange", q, **counts)
        x = p.op(f"blocks.{block}.sum", received, p.matmul(f"blocks.{block}.mlp.linear", x))
    out = p.op("out", x, shape=(5,))
    graph = GraphDescription(
        "Net", tuple(p.nodes), tuple(p.collectives), (out,), 100, {"f16": 3000, "f32": 40}
    )
    return RankForecast.of(graph, degree=2)


def forecast(
    branches: int = 2, cfg: int = 2, detail: int = 0, ahead: RankForecast | None = None, parts: int = 1
) -> Forecast:
    mesh = Mesh({"ulysses": 2, "cfg": cfg})
    ranks = tuple(replace(rank, ahead=ahead) for rank in (rank_forecast(4), rank_forecast(2, rank=1))) * cfg
    return Forecast("Net at 64 px", {"dtype": "f16"}, mesh, ranks, detail, 3, branches, ("a note",), parts)


def test_json_names_groups_by_axis():
    report = as_json(forecast())
    assert report["world_size"] == 4
    assert report["axes"] == {"tp": 1, "ulysses": 2, "ring": 1, "kv_gather": 1, "cfg": 2, "dp": 1}
    assert list(report["groups"]) == ["tp", "ulysses", "ring", "kv_gather", "cfg", "dp", "world"]
    assert report["groups"]["ulysses"] == [[0, 1], [2, 3]]
    assert report["groups"]["cfg"] == [[0, 2], [1, 3]]
    assert report["groups"]["world"] == [[0, 1, 2, 3]]
    assert json.loads(json.dumps(report)) == report


def test_uneven_ranks_send_different_bytes():
    # rank 0 sends 2 elements per block to its peer, rank 1 sends 2; 5 elements of f32 go to the other branch
    report = as_json(forecast())
    per_block = [4 * 2, 4 * 2]
    assert report["bytes_sent_per_step"] == [BLOCKS * per_block[r % 2] + 5 * 4 for r in range(4)]
    assert report["bytes_sent"] == [3 * nbytes for nbytes in report["bytes_sent_per_step"]]


def test_one_cfg_rank_runs_the_branches_in_turn_and_exchanges_nothing():
    plan = forecast(cfg=1)
    assert plan.passes == 2
    assert plan.guidance is None
    assert plan.bytes_sent_per_step == (2 * BLOCKS * 8, 2 * BLOCKS * 8)
    assert plan.flops_per_step[0] == 2 * plan.schedule.flops


def test_cfg_ranks_exchange_nothing_when_there_is_one_branch():
    plan = forecast(branches=1)
    assert plan.passes == 1
    assert plan.guidance is None
    assert plan.bytes_sent_per_step == (BLOCKS * 8,) * 4


def test_memory_adds_weights_activations_and_inputs():
    plan = forecast()
    memory = as_json(plan)["memory"]
    assert [entry["rank"] for entry in memory] == [0, 1, 2, 3]
    assert memory[3]["coords"]["cfg"] == 1
    assert memory[0]["weights"] == {"f16": 3000, "f32": 40}
    assert memory[0]["compute"] == plan.schedule.buffer_nbytes > 0
    assert memory[0]["total"] == 3040 + memory[0]["compute"] + 100


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("cfg", "passes"), [(1, 2), (2, 1)])
def test_what_runs_ahead_is_told_apart_from_the_steps(cfg, passes, parts):
    """A rank that runs both branches does it twice and keeps both results, in memory of their own."""
    p = Program()
    out = p.matmul("embed.linear", p.op("embed", shape=(7,)))
    graph = GraphDescription("Net", tuple(p.nodes), (), (out,), 60, {})
    once = RankForecast.of(graph, degree=1)
    plain, plan = forecast(cfg=cfg), forecast(cfg=cfg, ahead=once, parts=parts)
    result_nbytes = p.nodes[out].nbytes
    flops = plan.flops_ahead(0)
    assert as_json(plan)["flops_ahead"] == flops == passes * parts * once.schedule.flops > 0
    assert plan.kept_nbytes(0) == passes * result_nbytes > 0
    assert as_json(plain)["flops_ahead"] == 0
    assert plan.flops_per_step == plain.flops_per_step
    memory, without = as_json(plan)["memory"][0], as_json(plain)["memory"][0]
    assert memory["ahead"] == once.schedule.buffer_nbytes + 60 + passes * result_nbytes
    assert memory["total"] == without["total"] + memory["ahead"]
    text = as_text(plan)
    assert f"Ahead of the steps, on each rank: {flop(flops)}" in text
    assert ("in 3 parts" in text) == (parts == 3)
    assert "head" not in as_text(plain)


def test_json_lists_segments_and_collectives_of_the_rank_in_detail():
    plan = forecast(detail=1)
    report = as_json(plan)
    assert report["rank"] == 1
    assert len(report["segments"]) == len(plan.schedule.segments) == 2 * BLOCKS + 1
    assert sum(segment["nodes"] for segment in report["segments"]) + 2 * BLOCKS == len(plan.graph.nodes)
    assert report["segments"][2]["receives"] == ["blocks.0.exchange"]
    first, last = report["collectives"][0], report["collectives"][-1]
    assert (first["kind"], first["axis"], first["bytes_per_peer"]) == ("all_to_all", "ulysses", [8, 0])
    assert first["overlap"] == {"segments": [1], "nodes": 1, "flops": 100}
    assert (last["name"], last["kind"], last["axis"], last["bytes_sent"]) == (
        "prediction",
        "all_gather",
        "cfg",
        20,
    )
    assert report["schedule_digest"] == plan.schedule.digest


def test_repeated_blocks_are_folded():
    schedule = forecast().schedule
    assert blocks_of(schedule) == [Block(0, 1, 1), Block(1, 4, BLOCKS - 1), Block(21, 4, 1)]


def test_blocks_cover_all_steps():
    schedule = forecast().schedule
    assert sum(block.period * block.count for block in blocks_of(schedule)) == len(schedule.steps)


def test_text_tells_a_block_once_unless_asked_for_everything():
    folded, full = as_text(forecast()), as_text(forecast(), full=True)
    assert f"{BLOCKS - 1} x" in folded
    assert folded.count("> start") == 2
    assert full.count("> start") == BLOCKS
    assert "blocks.3.exchange" in full
    assert "blocks.3.exchange" not in folded


def test_text_shows_ranks_groups_memory_and_notes():
    text = as_text(forecast())
    assert "Ranks: 4 = cfg 2 x ulysses 2" in text
    assert "cfg      [0,2]  [1,3]" in text
    assert "weights f16" in text
    assert "segment 1" in text and "mlp" in text
    assert "then, once a step: all_gather prediction over cfg, 20 B to each of 1 peer" in text
    assert text.endswith("note: a note")


def test_many_equal_ranks_share_a_line_unless_each_is_asked_for():
    one = rank_forecast(4)
    many = Forecast("Net", {}, Mesh({"ulysses": 2, "dp": 16}), (one,) * 32, 0, 1)
    assert "\n0-31" in as_text(many)
    assert "\n  31 " in as_text(many, every_rank=True)


def test_work_of_a_segment_is_named_by_its_heaviest_nodes():
    p = Program()
    nodes = [
        p.matmul("blocks.3.ff.net.0.proj.linear"),
        p.op("blocks.3.add"),
        p.matmul("blocks.3.to_q.linear"),
    ]
    assert work_in(p.nodes, nodes) == ["ff.net.0.proj", "to_q"]
    assert short_name("norm_out.linear") == "norm_out"


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 3], "0-3"), ([0, 2, 3, 7], "0, 2-3, 7")]
)
def test_ranges_fold_neighbours(numbers, text):
    assert ranges(numbers) == text


def test_units_read_well():
    assert [binary(n) for n in (0, 512, 1536, 3 * 2**20, 5 * 2**30)] == [
        "0 B",
        "512 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
    assert [flop(n) for n in (0, 12, 1.5e6, 2e9, 18.6e12)] == [
        "0",
        "12 FLOP",
        "1.5 MFLOP",
        "2.0 GFLOP",
        "18.6 TFLOP",
    ]


def test_picture_shows_each_block_once(tmp_path: Path):
    from edgedit.graph.picture import draw

    draw(forecast(), tmp_path / "plan.svg")
    svg = (tmp_path / "plan.svg").read_text()
    assert svg.startswith("<?xml")
    for words in ("Net at 64 px", f"{BLOCKS - 1} ×", "exchange  8 B", "compute inside a flight"):
        assert f"<!-- {words} -->" in svg
    draw(forecast(), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == svg


def test_picture_without_matplotlib_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from edgedit.graph.picture import draw

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EdgeditError, match=r"--plot needs matplotlib .*pip install 'edgedit\[plot\]'"):
        draw(forecast(), tmp_path / "plan.svg")
    assert not list(tmp_path.iterdir())


def test_planner_and_reports_import_without_ggml_numpy_or_mpi():
    code = (
        "import sys\n"
        "for name in ('ggml', 'numpy', 'mpi4py', 'matplotlib'): sys.modules[name] = None\n"
        "import edgedit.graph.planner, edgedit.graph.forecast, edgedit.graph.page, edgedit.graph.picture\n"
        "import edgedit.parallel.mesh\n"
        "from edgedit.graph import Node, Collective, Schedule, plan, first_difference\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
