"""Alternating measurements and what is told from them; needs nothing but Python and numpy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


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
        for name in in_turn(list(candidates), pair):
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


def in_turn(names: Sequence[str], index: int) -> list[str]:
    """The order of round `index`: odd rounds run backwards, so that a drift of the machine favours nobody."""
    return list(names)[:: -1 if index % 2 else 1]


def takes_part(index: int, rounds: int, wanted: int) -> bool:
    """Whether a contender that runs in `wanted` of `rounds` rounds, spread evenly, runs in round `index`."""
    return index * wanted % rounds < wanted


def time_ratio(own: Sequence[float | None], base: Sequence[float | None]) -> dict[str, Any]:
    """Time of one contender over that of another; both lists hold one entry a round, None where it did not run.

    of_medians  median of all rounds over median of all rounds
    of_pairs    median of the ratios of the rounds that both ran in, and their lowest and highest
    """
    pairs = sorted(a / b for a, b in zip(own, base, strict=True) if a is not None and b is not None)
    ratio: dict[str, Any] = {"of_medians": round(median(own) / median(base), 4)}
    if pairs:
        ratio |= {
            "of_pairs": round(statistics.median(pairs), 4),
            "pairs": len(pairs),
            "lowest_pair": round(pairs[0], 4),
            "highest_pair": round(pairs[-1], 4),
        }
    return ratio


def median(values: Sequence[float | None]) -> float:
    """Median of the rounds that were run."""
    return statistics.median(value for value in values if value is not None)


def milliseconds(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else round(value * 1e3, 2) for value in values]


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Norm of the difference over the norm of what is expected, summed in double precision."""
    assert actual.shape == expected.shape, f"{actual.shape} against {expected.shape}"
    wanted = expected.astype(np.float64)
    return float(np.linalg.norm(actual.astype(np.float64) - wanted) / np.linalg.norm(wanted))


def step_flops(dim: int, blocks: int, tokens: int) -> int:
    """Floating-point operations of one FLUX step: products of the blocks' linear layers and of attention.

    A double and a single block both multiply every token by 12 C^2 weights; q k^T and p v take 2 S^2 C each, an
    addition and a multiplication count as two. Embedders, modulations and the output, under 1 % together, are left out.
    """
    return blocks * (24 * dim**2 * tokens + 4 * tokens**2 * dim)
