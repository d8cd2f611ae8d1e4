"""``edgedit generate --auto``: the layout of the launched ranks, chosen on world rank 0 for all of them."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgedit import host, launcher
from edgedit.commands import layouts
from edgedit.commands.plan_subject import find_subject
from edgedit.config import AXES, ParallelConfig, degree_choices
from edgedit.tuning.machine import Machine
from edgedit.tuning.search import Prediction

if TYPE_CHECKING:
    from edgedit.pipelines.image_options import ImageOptions
    from edgedit.pipelines.request import Limits, Request

# Of the parallel arguments those that ranks need to meet at all.
_MEETING = ("backend", "comm", "ops", "kernels")


def choose(args: argparse.Namespace, request: Request, image: ImageOptions, limits: Limits) -> list[str]:
    """Set the degrees of a command line to those of the fastest layout; returns notes on the choice.

    All ranks call it together and get the same. Raises ValueError where nothing was measured, where ``--auto`` is
    given beside degrees, or for a picture that cannot be read: its size may decide the work.
    """
    layouts.check_auto(args)
    launch = launcher.detect(os.environ)
    words = {word: getattr(args, word) for word in _MEETING}
    config = ParallelConfig.from_env(dp_degree=launch.world_size, timeout_s=args.timeout, **words)

    from edgedit.parallel.context import ParallelContext

    with ParallelContext(config) as context:
        context.note(phase="choosing a layout")
        request, problem = image.added_to(request, limits, context)
        told: dict[str, Any] = {"problem": problem}
        if problem is None and context.rank == 0:
            try:
                told = _of_launch(args, request, launch) if launch.world_size > 1 else _alone(args, request)
            except ValueError as error:
                told = {"problem": str(error)}
        told = context.broadcast_object(told)
    if "problem" in told:
        raise ValueError(told["problem"])
    for axis in AXES:
        setattr(args, axis, told["degrees"][axis])
    notes: list[str] = told["notes"]
    return notes


def _of_launch(args: argparse.Namespace, request: Request, launch: launcher.Launch) -> dict[str, Any]:
    """Degrees of the fastest layout that fills the launch, and notes."""
    measured = layouts.measured_here(args)

    def machine_for(ranks: int) -> Machine:
        return replace(measured(launch.local_world_size if ranks > 1 else 1), is_filled=True)

    work = layouts.work_of(args, find_subject(args.model or str(args.transformer)), request)
    found, notes = layouts.ranked(work, machine_for, [launch.world_size, 1])
    filling = [prediction for prediction in found if prediction.world_size == launch.world_size]
    if not filling:
        raise ValueError(
            f"no layout lets {launch.world_size} ranks share this request without repeating work; "
            f"choose one: {degree_choices(launch.world_size)}"
        )
    alone = next(prediction for prediction in found if prediction.world_size == 1)
    return {"degrees": dict(filling[0].degrees), "notes": [_said(filling, alone), *notes]}


def _said(filling: list[Prediction], alone: Prediction) -> str:
    best = filling[0]
    rivals = [
        f"{layouts.seconds(p.step.total)} with {p.flags}" for p in [*filling[1:2], alone]
    ]  # the runner-up, and one rank
    said = f"--auto: {best.flags}, predicted {layouts.seconds(best.step.total)} a step; {', '.join(rivals)}"
    if alone.fits and alone.step.total < best.step.total:
        said += "; 1 rank is faster here"
    return said


def _alone(args: argparse.Namespace, request: Request) -> dict[str, Any]:
    """One rank is launched: no degrees, and notes on how long it takes and on what more ranks would do."""
    machine_for = layouts.measured_here(args)
    work = layouts.work_of(args, find_subject(args.model or str(args.transformer)), request)
    (own,), notes = layouts.ranked(work, machine_for, [1])
    took = layouts.seconds(own.step.total)
    said = f"--auto: one rank, predicted {took} a step"
    try:
        found, notes = layouts.ranked(work, machine_for, range(1, host.machine().num_cores + 1))
    except ValueError as error:  # alone it was measured, with others it was not
        return {"degrees": dict(own.degrees), "notes": [said, str(error), *notes]}
    best = found[0]
    if best.world_size == 1:
        said = f"--auto: {layouts.verdict(best, found[1:])}"
    else:
        faster = layouts.seconds(best.step.total)
        said += f"; {faster} with mpirun -n {best.world_size} edgedit generate ... {best.flags}"
    return {"degrees": dict(own.degrees), "notes": [said, *notes]}
