"""Alternating measurements and the record that is kept of them."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def alternate(
    candidates: dict[str, Callable[[], object]],
    pairs: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each candidate, run in turn `pairs` times after a warm-up; odd rounds run in reverse order.

    `clock` may be `time.process_time` for work of one thread on a machine that others use too.
    """
    for _ in range(warmup):
        for run in candidates.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for pair in range(pairs):
        names = list(candidates)[:: -1 if pair % 2 else 1]
        for name in names:
            began = clock()
            candidates[name]()
            seconds[name].append(clock() - began)
    return seconds


def summary(seconds: dict[str, list[float]], reference: str) -> dict[str, Any]:
    """Median and minimum in ms, and the median of the pairwise ratios to the reference."""
    rows = {}
    for name, values in seconds.items():
        ratios = [value / base for value, base in zip(values, seconds[reference], strict=True)]
        rows[name] = {
            "median_ms": round(statistics.median(values) * 1e3, 3),
            "min_ms": round(min(values) * 1e3, 3),
            f"ratio_to_{reference}": round(statistics.median(ratios), 4),
            "ratio_of_minima": round(min(values) / min(seconds[reference]), 4),
        }
    return rows


def save(name: str, measured: dict[str, Any]) -> None:
    """Print the record and write it to results/NAME.json, with processor, commit and command."""
    record = {
        "command": " ".join(["python", *sys.argv]),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
        ).stdout.strip(),
        "processor": _processor(),
        **measured,
    }
    text = json.dumps(record, indent=2)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        model = {key.strip(): value.strip() for key, value in fields.items()}
        return f"{model.get('model name', '?')}, family {model.get('cpu family')}, model {model.get('model')}"
    return platform.processor()
