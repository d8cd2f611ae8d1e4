"""The report of ``edgedit bench``: numbers of all ranks, as values and as text. Pure."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgedit.commands.layout_facts import layout_facts
from edgedit.config import ParallelConfig
from edgedit.graph.page import table
from edgedit.graph.units import binary

if TYPE_CHECKING:
    from edgedit.commands.bench_subject import Subject

PARTS = ("step_s", "compute_s", "exchange_s", "wait_s", "overhead_s")


def report(
    args: argparse.Namespace,
    subject: Subject,
    config: ParallelConfig,
    branches: int,
    ranks: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """What was measured. A step takes as long as on its slowest rank; the parts of a rank are means over the steps."""
    slowest = [
        max(steps) for steps in zip(*([s["step_s"] for s in rank["steps"]] for rank in ranks), strict=True)
    ]
    median_s = statistics.median(slowest)
    tokens = branches * subject.batch * (subject.image_tokens + subject.text_tokens)
    return {
        "model": subject.name,
        "dtype": args.dtype,
        "quantised_compute": args.quantised_compute,
        "batch": subject.batch,
        "image_tokens": subject.image_tokens,
        "text_tokens": subject.text_tokens,
        "branches": branches,
        **layout_facts(config),
        "wire_dtype": config.wire_dtype_for(args.dtype),
        "steps": args.steps,
        "warmup": args.warmup,
        "step_s": {
            "min": min(slowest),
            "median": median_s,
            "mean": statistics.fmean(slowest),
            "all": slowest,
        },
        "tokens_per_s": tokens / median_s,
        "gflop_per_s": sum(rank["flops"] for rank in ranks) / median_s / 1e9,
        "ranks": [_rank(rank) for rank in ranks],
    }


def _rank(rank: Mapping[str, Any]) -> dict[str, Any]:
    means = {part: statistics.fmean(step[part] for step in rank["steps"]) for part in PARTS[:-1]}
    means["overhead_s"] = means["step_s"] - means["compute_s"] - means["exchange_s"] - means["wait_s"]
    return {**means, **{name: value for name, value in rank.items() if name != "steps"}}


def as_text(report: Mapping[str, Any], notes: Sequence[str]) -> str:
    used = [f"{axis} {degree}" for axis, degree in report["axes"].items() if degree > 1]
    layout = [*(used or ["one rank"]), *(report[name] for name in ("backend", "comm", "ops", "kernels"))]
    pictures = f"{report['batch']} pictures of " if report["batch"] > 1 else ""
    seconds = report["step_s"]
    times = ", ".join(f"{name} {seconds[name] * 1e3:.1f} ms" for name in ("min", "median", "mean"))
    rows = [["rank", *(f"{part.removesuffix('_s')} ms" for part in PARTS), "threads", "memory", "sent"]]
    for number, rank in enumerate(report["ranks"]):
        parts = (f"{rank[part] * 1e3:.1f}" for part in PARTS)
        sizes = binary(rank["peak_anonymous_nbytes"]), binary(rank["bytes_sent"])
        rows.append([str(number), *parts, str(rank["threads"]), *sizes])
    lines = [
        f"{report['model']}, {report['dtype']}: {pictures}{report['image_tokens']} image tokens and "
        f"{report['text_tokens']} text tokens",
        ", ".join(layout),
        f"{report['steps']} steps after {report['warmup']}, the slowest rank of each: {times}",
        f"{report['tokens_per_s']:.0f} tokens/s, {report['gflop_per_s']:.1f} GFLOP/s",
        "",
        *table(rows),
        *(f"note: {note}" for note in notes),
    ]
    return "\n".join(lines)
