"""Profiles and benchmarks of several ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import trace_format
from launch import check_ok, mpirun
from trace_format import check_trace

from edgedit import binding, host

GENERATE = ("generate", "-p", "a red apple", "--steps", "2", "--seed", "5", "--threads", "1")


@pytest.mark.parametrize("layout", [("--comm", "in-graph"), ("--comm", "graph-cut"), ("--backend", "mpi")])
def test_a_trace_holds_both_ranks_and_the_picture_is_the_same(
    tmp_path: Path, layout: tuple[str, ...]
) -> None:
    files = ("-o", tmp_path / "a.png", "--latents-out", tmp_path / "plain.npy", "--json")
    plain = json.loads(check_ok(mpirun(2, "edgedit", *GENERATE, *files, "--ulysses", 2, *layout)))
    assert plain["timings"]["wait_s"] > 0 and plain["timings"]["exchange_s"] > 0
    files = ("-o", tmp_path / "b.png", "--latents-out", tmp_path / "profiled.npy")
    profile = ("--profile", tmp_path / "trace.json")
    printed = check_ok(mpirun(2, "edgedit", *GENERATE, *files, *profile, "--ulysses", 2, *layout))
    np.testing.assert_array_equal(np.load(tmp_path / "plain.npy"), np.load(tmp_path / "profiled.npy"))
    assert "waiting for peers" in printed and "attn.seq_to_head" in printed

    trace = check_trace(tmp_path / "trace.json", 2)
    for rank in range(2):
        steps = trace_format.of(trace, rank, "request", "step")
        assert len(steps) == 2
        sums = trace["edgedit"]["ranks"][rank]
        assert sums["step_s"] == pytest.approx(sum(step["dur"] for step in steps) * 1e-6)
        assert sum(found["nbytes"] for found in sums["exchanges"].values()) == plain["bytes_sent"][rank]
        waits, moves = (trace_format.of(trace, rank, thread) for thread in ("wait", "exchange"))
        within = [event for event in waits if any(trace_format.inside(event, step) for step in steps)]
        assert sum(event["dur"] for event in within) * 1e-6 == pytest.approx(sums["wait_s"])
        assert {event["args"]["axis"] for event in moves} == {"ulysses"}
    # by one clock, a rank starts no step before the other has ended its last one
    (first, _), (_, second) = (trace_format.of(trace, rank, "request", "step") for rank in range(2))
    assert first["ts"] < second["ts"] + second["dur"]
    check_order(trace)


def check_order(trace: dict) -> None:
    """Nobody has received what was not sent: an exchange's wait ends after the start of both ranks began."""
    starts, ends = {}, {}
    for rank in range(2):
        for event in trace_format.of(trace, rank, "exchange"):
            if event["name"] == "gather start":
                starts.setdefault(rank, event["ts"])
            elif event["name"] == "gather wait":
                ends.setdefault(rank, event["ts"] + event["dur"])
    assert min(ends.values()) >= max(starts.values())


def test_guidance_branches_exchange_their_predictions(tmp_path: Path) -> None:
    guided = ("--negative-prompt", "two blue dogs", "--true-cfg-scale", "2", "--cfg", "2")
    files = ("-o", tmp_path / "a.png", "--profile", tmp_path / "trace.json")
    check_ok(mpirun(2, "edgedit", *GENERATE, *guided, *files))
    trace = check_trace(tmp_path / "trace.json", 2)
    for rank in range(2):
        exchanges = trace["edgedit"]["ranks"][rank]["exchanges"]
        assert list(exchanges) == ["prediction of step 1", "prediction of step 2"]
        assert all(found["calls"] == 1 and found["nbytes"] > 0 for found in exchanges.values())


@pytest.mark.parametrize(
    ("layout", "branches"),
    [(("--ulysses", 2), 1), (("--cfg", 2), 2), (("--ulysses", 2, "--backend", "mpi"), 1)],
)
def test_bench_reports_every_rank(layout: tuple, branches: int) -> None:
    flags = ("--random", "tiny", "--steps", 3, "--threads", 1, "--json")
    report = json.loads(check_ok(mpirun(2, "edgedit", "bench", *flags, *layout)))
    assert (report["world_size"], report["branches"]) == (2, branches)
    assert report["tokens_per_s"] == pytest.approx(branches * 80 / report["step_s"]["median"])
    assert len(report["ranks"]) == 2
    places = [binding.decide("auto", rank, 2, host.machine(), threads=1) for rank in range(2)]
    assert [rank["binding"] for rank in report["ranks"]] == [place.text for place in places]
    for rank in report["ranks"]:
        parts = (rank[name] for name in ("compute_s", "exchange_s", "wait_s", "overhead_s"))
        assert sum(parts) == pytest.approx(rank["step_s"])
        assert rank["step_s"] <= report["step_s"]["mean"] * (1 + 1e-9)
        assert rank["bytes_sent"] > 0 and rank["wait_s"] >= 0 and rank["exchange_s"] > 0
        assert rank["peak_anonymous_nbytes"] > 2**20


def test_ranks_that_were_given_different_benchmarks_end_together() -> None:
    done = mpirun(2, Path(__file__).parent / "programs" / "unlike_benchmarks.py")
    assert done.returncode != 0
    assert "disagree on benchmark: line 1 is 'steps = 2' on rank 0 and 'steps = 3' on rank 1" in done.stderr
