"""The parts of benchmarks/ that measure nothing: turns, ratios, errors, the record, and orders to processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from contenders import COMPILED, DEFAULT, baselines, options_of
from crew import Crew, CrewError
from crews import shares
from layouts import comparisons, groups, peaks, peers
from measurement import in_turn, relative_error, step_flops, summary, takes_part, time_ratio
from peak import Peak, compile_peak
from race import Race, complaints
from record import as_text, command, machine, telling_flags, versions
from table import BEGIN, END, insert, tables

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_odd_rounds_run_backwards():
    assert in_turn(["a", "b", "c"], 0) == ["a", "b", "c"]
    assert in_turn(["a", "b", "c"], 1) == ["c", "b", "a"]


@pytest.mark.parametrize("rounds", range(1, 12))
def test_a_slow_contender_takes_as_many_rounds_as_it_should_spread_evenly(rounds):
    for wanted in range(1, rounds + 1):
        taken = [index for index in range(rounds) if takes_part(index, rounds, wanted)]
        assert len(taken) == wanted
        assert taken[0] == 0
        gaps = np.diff([*taken, rounds])
        assert gaps.max() - gaps.min() <= 1


def test_a_contender_that_wants_more_rounds_than_there_are_takes_all():
    assert all(takes_part(index, 3, 5) for index in range(3))


def test_ratios_of_medians_and_of_the_rounds_that_both_ran_in():
    ratio = time_ratio([1.0, 9.0, 2.0, 3.0], [2.0, None, 8.0, 3.0])
    assert ratio == {
        "of_medians": round(2.5 / 3, 4),
        "of_pairs": 0.5,
        "pairs": 3,
        "lowest_pair": 0.25,
        "highest_pair": 1.0,
    }


def test_contenders_that_never_met_have_no_ratio_of_pairs():
    assert time_ratio([4.0, None], [None, 2.0]) == {"of_medians": 2.0}


def test_summary_is_relative_to_the_reference():
    rows = summary({"ours": [0.001, 0.004, 0.002], "theirs": [0.002, 0.004, 0.008]}, "theirs")
    assert rows["ours"] == {
        "median_ms": 2.0,
        "min_ms": 1.0,
        "ratio_to_theirs": 0.5,
        "ratio_of_minima": 0.5,
    }


def test_relative_error_is_a_ratio_of_norms():
    assert relative_error(np.float32([3, 4]), np.float32([0, 0.0]) + np.float32([3, 0])) == pytest.approx(
        4 / 3
    )
    with pytest.raises(AssertionError, match=r"\(2,\) against \(3,\)"):
        relative_error(np.zeros(2), np.zeros(3))


def test_flops_of_a_step_are_those_of_its_products():
    # one double block: q, k, v, out of 1x1 and an MLP of 4x, each weight twice a token; q k^T and p v
    dim, tokens = 64, 10
    weights = 4 * dim * dim + 2 * dim * 4 * dim
    assert step_flops(dim, 1, tokens) == 2 * tokens * weights + 2 * (2 * tokens * tokens * dim)


def test_a_record_is_json_with_a_line_for_each_list_of_numbers():
    record = {"ms": [1.5, None, 2], "rows": [{"a": []}], "name": "x"}
    text = as_text(record)
    assert json.loads(text) == record
    assert '"ms": [ 1.5, null, 2 ]' in text


def test_a_record_names_no_places_of_this_machine():
    words = ["/somewhere/benchmarks/denoise.py", "--peer-python", "/elsewhere/bin/python", "--rounds", "7"]
    assert command(words) == "python benchmarks/denoise.py --peer-python python --rounds 7"


def test_of_the_flags_only_those_that_choose_kernels_are_kept():
    assert telling_flags(["fpu", "avx2", "avx512_vnni", "fma", "avx2", "amx_bf16", "sse"]) == [
        "amx_bf16",
        "avx2",
        "avx512_vnni",
        "fma",
    ]


def test_the_machine_and_versions_are_told():
    assert machine().keys() == {"processor", "flags", "cores"}
    assert versions("numpy", "no-such-package") == {
        "python": ".".join(map(str, sys.version_info[:3])),
        "numpy": np.__version__,
    }


@pytest.fixture
def program(tmp_path):
    """A rank whose contender adds the rank to what it was told, or fails, or ends."""
    source = tmp_path / "program.py"
    source.write_text(
        f"""
import os, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
import numpy as np
from rank import Contender, serve

def prepare(options):
    if "fail" in options:
        raise ValueError("no such thing")
    if "end" in options and rank == 1:
        os._exit(3)
    return Contender(lambda: np.array([options["value"] + rank]), run_details=lambda: {{"rank": rank}})

rank = int(sys.argv[1])
serve(sys.argv[2], rank, {{"python": "x"}}, prepare)
"""
    )
    return [([sys.executable, str(source), str(rank)], {}) for rank in range(2)]


def test_a_crew_carries_out_orders_together(program, tmp_path):
    with Crew(program, 2, [[0], [0]]) as crew:
        assert crew.versions == {"python": "x"}
        assert crew.prepare("sum", {"value": 5}).keys() == {"load_s", "warmup_s"}
        crew.pin()
        told = crew.run("sum")
        assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
        assert 0 < told["seconds"] < 60
        crew.save("sum", tmp_path / "result.npy")
    assert np.load(tmp_path / "result.npy") == 5


def test_an_order_that_fails_leaves_the_crew_in_order(program):
    with Crew(program, 2, [[0], [0]]) as crew:
        with pytest.raises(CrewError, match="ValueError: no such thing"):
            crew.prepare("none", {"fail": True})
        crew.prepare("sum", {"value": 1})


def test_a_crew_that_lost_a_rank_takes_no_more_orders(program):
    with Crew(program, 2, [[0], [0]]) as crew:
        with pytest.raises(CrewError, match="rank 1 of 2 ended"):
            crew.prepare("sum", {"end": True, "value": 0})
        with pytest.raises(CrewError, match="were ended"):
            crew.run("sum")


def test_a_program_that_never_connects_is_an_error():
    with pytest.raises(CrewError, match="ended early"):
        Crew([([sys.executable, "-c", ""], {})], 1, [[0]])


def test_contenders_become_options():
    request = Path("request0.npz")
    assert options_of("edgedit:q8_0:int8", "auto", request) == {
        "dtype": "q8_0",
        "compute": "int8",
        "kernels": "auto",
        "requests": ["request0.npz"],
    }
    assert options_of("ggml:f32", "avx2", request)["kernels"] == "ggml"
    assert options_of("compiled:bf16", "auto", request)["compiled"]
    assert all(options_of(name, "auto", request) for name in [*DEFAULT, *COMPILED])


@pytest.mark.parametrize("name", ["torch:f32", "edgedit", "edgedit:f32:int4", "diffusers:f32:int8", "peak"])
def test_a_contender_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match="is not like"):
        options_of(name, "auto", Path("request0.npz"))


def test_contenders_are_compared_with_peers_and_with_stock_ggml_of_their_type():
    names = ["edgedit:q8_0", "edgedit:q8_0:int8", "ggml:q8_0", "ggml:f32", "diffusers:f32", "compiled:f32"]
    peers = ["diffusers:f32", "compiled:f32"]
    assert baselines("edgedit:q8_0", names) == ["ggml:q8_0", *peers]
    assert baselines("edgedit:q8_0:int8", names) == ["edgedit:q8_0", "ggml:q8_0", *peers]
    assert baselines("ggml:f32", names) == peers
    assert baselines("compiled:f32", names) == ["diffusers:f32"]
    assert baselines("diffusers:f32", names) == []


class FakeCrew:
    """Takes `seconds` for a step; the peak is 1 GFLOP in 10 ms."""

    def __init__(self):
        self.seconds = {"edgedit:f32": 0.5, "diffusers:f32": 2.0, "diffusers:bf16": 20.0, "peak": 0.01}
        self.order = []

    def prepare(self, name, options, timeout_s):
        if name not in self.seconds:
            raise CrewError("not here")
        return {"load_s": 1.0, "warmup_s": self.seconds[name], "flops": 10**9}

    def run(self, name):
        self.order.append(name)
        return {"seconds": self.seconds[name], "processor_s": self.seconds[name], "ranks": []}

    def save(self, name, path):
        np.save(path, np.array([1.0, 1.0 if name == "diffusers:f32" else 1.1]))


def test_a_race_in_turns(tmp_path, monkeypatch):
    monkeypatch.setattr("race.SETTLE_S", 0)
    crew = FakeCrew()
    race = Race({"edgedit": crew, "diffusers": crew, "compiled": crew})
    for name in ["edgedit:f32", "compiled:f32", "diffusers:f32", "diffusers:bf16", "peak"]:
        race.prepare(name, {})
    race.run(rounds=2, slow_s=10, slow_rounds=1)
    names = ["edgedit:f32", "diffusers:f32", "diffusers:bf16", "peak"]
    assert crew.order == [*names, "peak", "diffusers:f32", "edgedit:f32"]
    assert race.failed == {"compiled:f32": "not here"}
    assert race.peak() == [100.0, 100.0]

    rows = race.rows(40 * 10**9, tmp_path)
    assert rows.keys() == set(names[:3])
    ours = rows["edgedit:f32"]
    assert (ours["gflop_per_s"], ours["share_of_peak"]) == (80.0, 0.8)
    assert ours["time_ratio"]["diffusers:f32"]["of_pairs"] == 0.25
    assert ours["error_to_diffusers_f32"] == pytest.approx(0.1 / 2**0.5, rel=1e-2)
    assert (rows["diffusers:bf16"]["rounds"], rows["diffusers:bf16"]["ms"]) == (1, [20000.0, None])


def test_results_that_are_no_rounding_are_complained_about():
    rows = {
        name: {"error_to_diffusers_f32": error}
        for name, error in {"a": 0.15, "b": 1.2, "c": float("nan")}.items()
    }
    lines = complaints({"d": "not here"}, {**rows, "e": {}})
    assert [line.split()[0] for line in lines] == ["d", "b", "c"]


def test_layouts_are_compared_with_one_rank_and_with_as_many_threads():
    step, branches, apart, peer = groups(ranks=2, threads=3, with_diffusers=True)
    assert [layout.name for layout in step] == [
        "edgedit step 1x3",
        "edgedit step 1x6",
        "edgedit step 2x3 ulysses",
    ]
    assert [layout.name for layout in branches] == [
        "edgedit branches 1x3",
        "edgedit branches 1x6",
        "edgedit branches 2x3 cfg",
    ]
    assert [layout.name for layout in apart] == ["edgedit step 1x3", "edgedit step 2x3 dp"]
    assert comparisons(apart) == [(apart[1], step[0])]
    assert {layout.who for layout in peer} == {"diffusers"}
    one, threaded, shared = step
    assert comparisons(step) == [(shared, one), (threaded, one), (shared, threaded)]
    assert len(groups(4, 1, with_diffusers=False)) == 3
    assert peers(step, [*step, *peer]) == list(zip(step, peer, strict=True))
    assert peers(step, step) == peers(branches, [*branches, *peer]) == peers(peer, peer) == []


def test_the_peak_is_measured_on_the_cores_of_one_rank_and_of_all():
    one, all_cores = peaks(ranks=2, threads=3)
    assert (one.name, all_cores.name) == ("peak 1x3", "peak 1x6")
    assert comparisons((one, all_cores)) == [(all_cores, one)]


def test_ranks_keep_to_their_own_cores(monkeypatch):
    monkeypatch.setattr("crews.os.sched_getaffinity", lambda _: {5, 2, 3, 4})
    assert shares(2, 2) == [[2, 3], [4, 5]]
    assert shares(1, 1) == [[2]]
    assert shares(3, 2) == [[2, 3], [4, 5], [4, 5]]


def test_tables_of_records():
    model = {
        "model": "mini",
        "dim": 1024,
        "double_blocks": 2,
        "single_blocks": 4,
        "image_tokens": 1024,
        "text_tokens": 128,
    }
    row = {"median_ms": 500.4, "gflop_per_s": 80.2, "rounds": 7, "time_ratio": {}}
    half = {"of_medians": 0.5, "of_pairs": 0.497}
    ours = row | {"share_of_peak": 0.93, "error_to_diffusers_f32": 1.23e-6}
    ours["time_ratio"] = {"diffusers:f32": half}
    layout = {"median_ms": 1200.0, "wait_share": [0.01, 0.02], "exchange_share": [0.1, 0.2]}
    text = tables(
        {
            "exchange": {},
            "scaling-mini-f32": model
            | {"dtype": "f32", "measured": {"2x1": layout}, "time_ratio": {"2x1 / 1x1": half}},
            "denoise-mini": model
            | {
                "threads": 1,
                "failed": {"compiled:f32": "no answer"},
                "measured": {"edgedit:f32": ours, "diffusers:f32": row},
            },
        }
    )
    lines = text.splitlines()
    assert lines[0] == "**mini: width 1024, 2 + 4 blocks, 1024 + 128 tokens**, 1 thread(s)"
    assert "| edgedit:f32 | 500 | 80 | 93% | 1.2e-06 |  | 0.50 | 7 |" in lines
    assert "| diffusers:f32 | 500 | 80 |  |  |  |  | 7 |" in lines
    assert "compiled:f32 took no part: no answer." in lines
    assert "| 2x1 | 1200 | 1.0%, 2.0% | 10.0%, 20.0% |" in lines
    assert "| 2x1 / 1x1 | 0.500 | 0.497 |" in lines


def test_tables_go_between_the_markers():
    text = f"before {BEGIN}old{END} after"
    assert insert(insert(text, "new"), "newer") == f"before {BEGIN}\n\nnewer\n\n{END} after"
    with pytest.raises(ValueError, match="has no"):
        insert(f"only {END}", "new")


def test_the_loop_at_the_peak_counts_its_operations(tmp_path):
    library = compile_peak(tmp_path)
    if library is None:
        pytest.skip("no C compiler")
    one, three = Peak(library, rounds=1000), Peak(library, threads=3, rounds=6000)
    assert one.flops > 0 and one.flops % 1000 == 0
    assert three.flops == 6 * one.flops
    three()
