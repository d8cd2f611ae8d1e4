"""Predictions of layouts for a command line: for ``plan --auto``, ``plan --cluster`` and ``generate --auto``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from edgedit import kernels
from edgedit.config import AXES
from edgedit.tuning.cache import Measurements
from edgedit.tuning.machine import Machine
from edgedit.tuning.search import CostModel, Prediction, Work, by_preference

if TYPE_CHECKING:
    from edgedit.commands.plan_subject import Subject
    from edgedit.pipelines.request import Request

_WORDS = ("ops", "kernels", "wire_dtype")
_MEASURED = ("backend", "comm", "ops")


def add_auto_argument(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--auto", action="store_true", help=what)


def check_auto(args: argparse.Namespace) -> None:
    """ValueError where ``--auto`` is to choose what the command line says already."""
    given = [f"--{axis.replace('_', '-')} {getattr(args, axis)}" for axis in AXES if getattr(args, axis) != 1]
    given += [f"--sp {args.sp}"] if args.sp is not None else []
    if given:
        raise ValueError(f"--auto chooses the layout, but {', '.join(given)} is given too")


def work_of(args: argparse.Namespace, subject: Subject, request: Request) -> Work:
    return Work(
        network=subject.network,
        config=subject.config,
        batch=request.batch,
        image_tokens=request.tokens_read(subject.limits),
        drawn_tokens=subject.limits.image_tokens(request.height, request.width),
        text_tokens=subject.fixed_text_tokens + request.max_sequence_length,
        branches=len(request.branches),
        dtype=args.dtype,
        options={
            **{word: getattr(args, word) for word in _WORDS},
            "weight_residency": "sharded" if args.shard_weights else "whole",
        },
    )


def measured_here(args: argparse.Namespace) -> Callable[[int], Machine]:
    """The machine for a number of ranks on this host. What it returns raises ValueError where nothing was measured."""
    return Measurements(kernels.chosen(args.kernels), options=measured_options(args)).machine_for


def measured_options(args: argparse.Namespace) -> dict[str, str]:
    """Options of a command line on which measurements depend."""
    return {word: str(getattr(args, word)) for word in _MEASURED if getattr(args, word, None) not in (None, "auto")}


def ranked(
    work: Work, machine_for: Callable[[int], Machine], world_sizes: Iterable[int]
) -> tuple[list[Prediction], list[str]]:
    """All legal layouts of these numbers of ranks, the best first, and what the user should know of them."""
    found: list[Prediction] = []
    notes: list[str] = []
    for world_size in dict.fromkeys(world_sizes):
        model = CostModel(work, machine_for(world_size))
        found += model.ranked(world_size)
        if model.rates_dtype != work.dtype:
            notes.append(f"{work.dtype} weights were not measured; rates are those of {model.rates_dtype}")
    return by_preference(found), list(dict.fromkeys(notes))


def verdict(best: Prediction, others: Iterable[Prediction]) -> str:
    """The choice in a sentence, with the nearest one of another number of ranks."""
    rival = next((p for p in others if (p.world_size == 1) != (best.world_size == 1)), None)
    choice = best.flags if best.world_size > 1 else "1 rank is faster here"
    said = f"{choice}: predicted {seconds(best.step.total)} a step"
    return said + (f", {seconds(rival.step.total)} with {rival.flags}" if rival else "")


def seconds(value: float) -> str:
    if not value:
        return "0"
    if value >= 1:
        return f"{value:.0f} s" if value >= 100 else f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"


def as_json(prediction: Prediction) -> Mapping[str, Any]:
    return {
        "flags": "" if prediction.world_size == 1 else prediction.flags,
        "world_size": prediction.world_size,
        "axes": dict(prediction.degrees),
        "step_s": prediction.step.total,
        "compute_s": prediction.step.compute,
        "exposed_s": prediction.step.exposed,
        "weight_nbytes": prediction.weight_nbytes,
        "memory_nbytes": prediction.memory_nbytes,
        "fits": prediction.fits,
    }
