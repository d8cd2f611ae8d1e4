"""Contenders that take turns, and what is told of them afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from contenders import ORACLE, PEAK, baselines, crew_of
from crew import Crew, CrewError
from measurement import in_turn, median, milliseconds, relative_error, takes_part, time_ratio

LARGEST_ERROR = 0.5  # 4-bit weights: about 0.15
SETTLE_S = 0.05  # until the threads of the last contender sleep


class Race:
    """The contenders of one run, each in the crew that its name stands for.

    failed   why contenders could not be prepared; they take no part
    seconds  of each contender, one entry a round, None where it did not run; processor_s likewise
    """

    def __init__(self, crews: Mapping[str, Crew]) -> None:
        self._crews = crews
        self.prepared: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, str] = {}
        self.seconds: dict[str, list[float | None]] = {}
        self.processor_s: dict[str, list[float | None]] = {}

    def prepare(self, name: str, options: Mapping[str, Any], timeout_s: float = 600) -> None:
        began = time.perf_counter()
        try:
            self.prepared[name] = self._crews[crew_of(name)].prepare(name, options, timeout_s)
        except CrewError as error:
            self.failed[name] = str(error)
        say(f"{name}: {self.failed.get(name, 'ready')} ({time.perf_counter() - began:.1f} s)")

    def run(self, rounds: int, slow_s: float, slow_rounds: int) -> None:
        """Let all take turns; who was slower than `slow_s` when it warmed up runs in `slow_rounds` of the rounds."""
        names = list(self.prepared)
        wanted = {name: slow_rounds if self.prepared[name]["warmup_s"] > slow_s else rounds for name in names}
        self.seconds = {name: [None] * rounds for name in names}
        self.processor_s = {name: [None] * rounds for name in names}
        for index in range(rounds):
            for name in in_turn(names, index):
                if takes_part(index, rounds, wanted[name]):
                    time.sleep(SETTLE_S)
                    told = self._crews[crew_of(name)].run(name)
                    self.seconds[name][index] = told["seconds"]
                    self.processor_s[name][index] = told["processor_s"]
            say(f"round {index + 1} of {rounds}")

    def rows(self, flops: int, folder: Path) -> dict[str, dict[str, Any]]:
        """What is recorded of each contender; results pass through `folder`."""
        errors = self._errors(folder)
        return {name: self._row(name, flops, errors) for name in self._models()}

    def peak(self) -> list[float]:
        """GFLOP/s of the loop at the peak in every round; empty where it did not run."""
        return [round(self._peak_flops() / value / 1e9, 1) for value in self.seconds.get(PEAK, []) if value]

    def _models(self) -> list[str]:
        return [name for name in self.prepared if name != PEAK]

    def _peak_flops(self) -> int:
        flops: int = self.prepared[PEAK]["flops"]
        return flops

    def _errors(self, folder: Path) -> dict[str, float]:
        """Relative L2 error of every contender's velocity against diffusers in F32."""
        velocities = {}
        for name in self._models():
            path = folder / "velocity.npy"
            self._crews[crew_of(name)].save(name, path)
            velocities[name] = np.load(path)
        if ORACLE not in velocities:
            return {}
        return {name: relative_error(velocity, velocities[ORACLE]) for name, velocity in velocities.items()}

    def _row(self, name: str, flops: int, errors: Mapping[str, float]) -> dict[str, Any]:
        seconds, prepared = self.seconds[name], self.prepared[name]
        row = {
            "median_ms": round(median(seconds) * 1e3, 2),
            "min_ms": round(min(value for value in seconds if value is not None) * 1e3, 2),
            "median_processor_ms": round(median(self.processor_s[name]) * 1e3, 2),
            "gflop_per_s": round(flops / median(seconds) / 1e9, 1),
        }
        if PEAK in self.prepared:
            row["share_of_peak"] = self._share(self.seconds, name, flops)
            row["share_of_peak_in_processor_time"] = self._share(self.processor_s, name, flops)
        if name in errors:
            row["error_to_diffusers_f32"] = float(f"{errors[name]:.3g}")
        row["time_ratio"] = {
            base: time_ratio(seconds, self.seconds[base]) for base in baselines(name, self._models())
        }
        row["rounds"] = sum(value is not None for value in seconds)
        row["ms"] = milliseconds(seconds)
        row["load_s"] = round(prepared["load_s"], 1)
        return row | ({"kernels": prepared["kernels"]} if "kernels" in prepared else {})

    def _share(self, times: Mapping[str, Sequence[float | None]], name: str, flops: int) -> float:
        """Operations per second of a step over those of the loop at the peak, median of the pairs."""
        return round(flops / self._peak_flops() / time_ratio(times[name], times[PEAK])["of_pairs"], 4)


def complaints(failed: Mapping[str, str], rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Contenders that took no part, and those whose result is far from what any rounding of weights explains."""
    lines = [f"{name} took no part: {reason}" for name, reason in failed.items()]
    for name, row in rows.items():
        error = row.get("error_to_diffusers_f32", 0.0)
        if not error < LARGEST_ERROR:
            lines.append(f"{name} computes something else: its error is {error}")
    return lines


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
