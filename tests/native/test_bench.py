"""``edgedit bench`` and ``--profile`` on one rank."""

from __future__ import annotations

import itertools
import json
import re

import pytest
import trace_format
from tiny import write_flux_pipeline
from tiny_sd3 import write_sd3_pipeline
from trace_format import check_trace

from edgedit import cli
from edgedit.commands import memory
from edgedit.models.random_flux import SIZES

BENCH = ["bench", "--threads", "1", "--steps", "3"]


def bench(capsys, *flags: str) -> dict:
    assert cli.main([*BENCH, "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_report_holds_times_rates_memory_and_layout(capsys) -> None:
    report = bench(capsys, "--random", "tiny", "--dtype", "f16", "--ops", "generic", "--warmup", "2")
    size, seconds = SIZES["tiny"], report["step_s"]
    assert (report["model"], report["dtype"], report["ops"]) == ("random tiny", "f16", "generic")
    assert (report["image_tokens"], report["text_tokens"]) == (64, size.text_tokens)
    assert len(seconds["all"]) == report["steps"] == 3
    assert seconds["min"] == min(seconds["all"]) <= seconds["median"] <= max(seconds["all"])
    assert seconds["mean"] == pytest.approx(sum(seconds["all"]) / 3)
    assert report["tokens_per_s"] == pytest.approx(size.tokens / seconds["median"])
    (rank,) = report["ranks"]
    assert report["gflop_per_s"] == pytest.approx(rank["flops"] / seconds["median"] / 1e9)
    parts = ("compute_s", "exchange_s", "wait_s", "overhead_s")
    assert (
        rank["step_s"] == pytest.approx(seconds["mean"]) == pytest.approx(sum(rank[part] for part in parts))
    )
    assert rank["compute_s"] > rank["overhead_s"] > 0
    assert (rank["bytes_sent"], rank["exchange_s"], rank["wait_s"]) == (0, 0, 0)
    assert rank["threads"] == 1
    assert rank["peak_anonymous_nbytes"] > 2**20


def test_pictures_of_a_batch_count(capsys) -> None:
    one, two = (bench(capsys, "--random", "tiny", "--num-images", count)["ranks"][0] for count in "12")
    assert two["flops"] == pytest.approx(2 * one["flops"], rel=1e-2)  # positions are the same for both


def test_a_model_directory_is_timed_at_the_size_asked_for(tmp_path, capsys) -> None:
    model = write_flux_pipeline(tmp_path / "flux", heads=3, t5_length=5, guidance=True)
    report = bench(capsys, "--model", str(model), "--max-sequence-length", "4")
    wide = bench(
        capsys, "--model", str(model), "--max-sequence-length", "4", "--width", "32", "--height", "64"
    )
    assert report["text_tokens"] == wide["text_tokens"] == 4
    assert (
        wide["image_tokens"]
        == 32
        * 64
        // (32 * 32)
        * bench(capsys, "--model", str(model), "--width", "32", "--height", "32")["image_tokens"]
    )


def test_stable_diffusion_3_is_timed_with_all_of_its_text(tmp_path, capsys) -> None:
    model = write_sd3_pipeline(tmp_path / "sd3", with_t5=False)
    report = bench(
        capsys, "--model", str(model), "--max-sequence-length", "4", "--width", "32", "--height", "20"
    )
    assert (report["image_tokens"], report["text_tokens"]) == (8 * 5, 16 + 4)
    assert report["ranks"][0]["flops"] > 0


def test_the_text_is_for_reading(capsys) -> None:
    assert cli.main([*BENCH]) == 0
    text = capsys.readouterr().out
    assert text.startswith("embedded, f32: 16 image tokens and 16 text tokens\none rank, none, ")
    assert re.search(
        r"3 steps after 1, the slowest rank of each: min \S+ ms, median \S+ ms, mean \S+ ms", text
    )
    assert re.search(r"\d+ tokens/s, \S+ GFLOP/s", text)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps", "0"], "--steps is 0; at least 1"),
        (["--warmup", "-1"], "--warmup is -1; at least 0"),
        (["--threads", "0"], "--threads is 0; at least 1"),
        (["--random", "huge"], "invalid choice: 'huge'"),
        (["--random", "mini", "--width", "64"], "states the shape of the step, but --width is given too"),
        (["--random", "mini", "--model", "x"], "but --model is given too"),
        (["--random", "mini", "--num-images", "0"], "--num-images is 0"),
        (["--model", "nowhere"], "nowhere"),
        (["--width", "7"], "width"),
        (["--ulysses", "3"], "mpirun -n 3"),
        (["--random", "tiny", "--ulysses", "2"], "mpirun -n 2"),
        (["--bind", "socket"], "bind is 'socket'; legal: auto, none, core, numa"),
        (["--profile", "t.txt"], "must end in .json"),
        (["--vae-ranks", "0"], "--vae-ranks is 0"),
        (["--profile", "nowhere/t.json"], "no directory nowhere"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(flags, message, capsys) -> None:
    try:
        status = cli.main(["bench", *flags])
    except SystemExit as error:
        status = error.code
    assert status == cli.BAD_INPUT
    assert message in capsys.readouterr().err


def test_replicas_need_a_picture_each(monkeypatch, capsys) -> None:
    launch = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["bench", "--random", "tiny", "--dp", "2"]) == cli.BAD_INPUT
    assert "--dp 2 shares pictures, and --num-images is 1: at least 2 are needed" in capsys.readouterr().err


def check_steps(trace: dict, rank: int, num_steps: int) -> None:
    """Steps of a rank hold the slices of its nodes; their lengths add up to no more than the step."""
    steps = trace_format.of(trace, rank, "request", "step")
    assert len(steps) == num_steps
    leaves = [
        event
        for thread in ("compute", "exchange", "wait")
        for event in trace_format.of(trace, rank, thread)
        if event["cat"] != "segment"
    ]
    for step in steps:
        own = [event for event in leaves if trace_format.inside(event, step)]
        assert own
        assert sum(event["dur"] for event in own) <= step["dur"]
        ends = sorted((event["ts"], event["ts"] + event["dur"]) for event in own)
        apart = all(a[1] <= b[0] + trace_format.ROUNDING_US for a, b in itertools.pairwise(ends))
        assert apart, "a rank does one thing at a time"
    sums = trace["edgedit"]["ranks"][rank]
    parts = sums["compute_s"] + sums["exchange_s"] + sums["wait_s"] + sums["overhead_s"]
    assert parts == pytest.approx(sums["step_s"]) == pytest.approx(sum(step["dur"] for step in steps) * 1e-6)
    assert sums["overhead_s"] > 0


@pytest.mark.parametrize("comm", ["graph-cut", "in-graph"])
def test_bench_writes_a_trace(tmp_path, capsys, comm) -> None:
    path = tmp_path / "trace.json"
    assert cli.main([*BENCH, "--random", "tiny", "--comm", comm, "--profile", str(path)]) == 0
    text = capsys.readouterr().out
    assert str(path) in text and "Rank 0, one of 3 steps:" in text
    trace = check_trace(path, 1)
    check_steps(trace, 0, 3)
    assert trace["edgedit"]["bench"]["model"] == "random tiny"
    assert not list(tmp_path.glob("*.partial"))


def test_generate_draws_the_same_picture_and_shows_all_of_the_request(tmp_path, capsys) -> None:
    path = tmp_path / "trace.json"
    flags = ["-p", "a red apple", "--steps", "2", "--seed", "3", "--threads", "1"]
    plain, profiled = tmp_path / "plain.npy", tmp_path / "profiled.npy"
    assert (
        cli.main(["generate", *flags, "-o", str(tmp_path / "a.png"), "--latents-out", str(plain), "--json"])
        == 0
    )
    timings = json.loads(capsys.readouterr().out)["timings"]
    assert 0 < timings["compute_s"] <= timings["denoising_s"]
    assert timings["exchange_s"] == timings["wait_s"] == 0
    profile = ["--latents-out", str(profiled), "--profile", str(path)]
    assert cli.main(["generate", *flags, "-o", str(tmp_path / "b.png"), *profile]) == 0
    assert "kind " in capsys.readouterr().out
    assert plain.read_bytes() == profiled.read_bytes()
    trace = check_trace(path, 1)
    check_steps(trace, 0, 2)
    phases = [event["name"] for event in trace_format.of(trace, 0, "request", "phase")]
    for phase in ("loading weights", "encoding text", "denoising", "decoding"):
        assert phase in phases
    graphs = {event["name"] for event in trace_format.of(trace, 0, "request", "graph")}
    assert {"CLIPTextModel", "T5EncoderModel", "FluxTransformer", "AutoencoderKL"} <= graphs
    product = max(
        (event for event in trace_format.of(trace, 0, "compute") if event["cat"] != "segment"),
        key=lambda event: event["args"]["flops"],
    )
    assert {"shape", "dtype", "inputs", "flops", "nbytes", "segment"} <= product["args"].keys()


def test_a_profile_needs_the_cpu(monkeypatch, capsys) -> None:
    monkeypatch.setattr("edgedit.config.find_spec", lambda name: object())
    assert cli.main(["bench", "--backend", "nccl", "--profile", "t.json"]) == cli.BAD_INPUT
    assert "only the CPU can be profiled" in capsys.readouterr().err


def test_peak_memory_sees_what_is_freed_again() -> None:
    with memory.PeakMemory() as peak:
        before = memory.anonymous_nbytes()
        held = bytearray(b"x") * (64 << 20)
        peak.look()
        del held
    assert peak.nbytes >= before + (60 << 20)
