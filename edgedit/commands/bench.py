"""``edgedit bench``: time the transformer's steps in any layout, on one rank or under mpirun."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from edgedit.commands import bench_report, output
from edgedit.commands.bench_subject import RANDOM_SIZES, Subject, find_subject
from edgedit.commands.layout_facts import transformer_only_notes
from edgedit.commands.memory import PeakMemory
from edgedit.commands.options import (
    add_host_arguments,
    add_parallel_arguments,
    bind_rank,
    parallel_options,
)
from edgedit.commands.profiling import Finished, add_profile_argument, check_profile, finish
from edgedit.commands.request_arguments import add_request_arguments
from edgedit.config import ParallelConfig
from edgedit.parallel.split import array_split
from edgedit.pipelines.parts import EMBEDDED

if TYPE_CHECKING:
    from edgedit.parallel.context import ParallelContext
    from edgedit.pipelines.branches import Branches

_STEPS, _WARMUP, _PROFILED_STEPS = 5, 1, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default=EMBEDDED,
        help="a directory in diffusers layout, or a file with a transformer (default: the embedded model)")  # fmt: skip
    add("--random", choices=RANDOM_SIZES, help="a transformer of that size with random weights instead")
    add(
        "--warmup",
        type=int,
        default=_WARMUP,
        metavar="N",
        help="steps before those that count (default: %(default)s)",
    )
    add("--json", action="store_true", help="print one JSON object instead of text")
    add_request_arguments(parser)
    add_host_arguments(parser)
    add_parallel_arguments(parser)
    add_profile_argument(parser)
    parser.set_defaults(steps=_STEPS)


def run(args: argparse.Namespace) -> int:
    for name, lowest in (("steps", 1), ("warmup", 0)):
        if getattr(args, name) < lowest:
            raise ValueError(f"--{name} is {getattr(args, name)}; at least {lowest} is needed")
    subject = find_subject(args)
    options, chosen = parallel_options(args, subject.config.num_attention_heads)
    config = ParallelConfig.from_env(**options)
    subject.check_parallel(config)
    if subject.batch < config.dp_degree:
        raise ValueError(
            f"--dp {config.dp_degree} shares pictures, and --num-images is {subject.batch}: "
            f"at least {config.dp_degree} are needed"
        )
    check_profile(args.profile, config)
    bound = bind_rank(args, config).text

    from edgedit.parallel.context import ParallelContext

    with ParallelContext(config) as context:
        problem = output.problem_with(context, [args.profile] if args.profile else [])
        if problem is None:
            notes = [*([chosen] if chosen else []), *transformer_only_notes(config, "timed")]
            _measure(args, subject, context, notes, bound)
    if problem is not None:
        raise ValueError(problem)
    return 0


def _measure(
    args: argparse.Namespace, subject: Subject, context: ParallelContext, notes: list[str], bound: str
) -> None:
    """Time the steps and report: on every rank, the last on world rank 0."""
    context.agree(
        "benchmark", [f"{name} = {getattr(args, name)}" for name in ("steps", "warmup", "num_images")]
    )
    peak = PeakMemory()
    with peak:
        share = array_split(subject.batch, context.config.dp_degree)[context.coords["dp"]]
        step = Step(replace(subject, batch=share), context)
        for _ in range(args.warmup):
            step()
    sent_before = context.bytes_sent
    timings = []
    for index in range(args.steps):
        context.note(step=index + 1, phase="benchmark")
        timings.append(step())
        peak.look()
    own = {
        "steps": [asdict(timing) for timing in timings],
        "threads": step.transformer.backend.threads,
        "binding": bound,
        "flops": step.flops,
        "peak_anonymous_nbytes": peak.nbytes,
        "bytes_sent": (context.bytes_sent - sent_before) // args.steps,
    }
    ranks = [
        json.loads(data) for data in context.group("world").exchange(json.dumps(own).encode(), label="times")
    ]
    profile = _profiled(step, context) if args.profile else None
    if context.rank == 0:
        report = bench_report.report(args, subject, context.config, step.branches.count, ranks)
        if profile is not None:
            output.write_files({args.profile: profile.writer({"bench": report})})
        print(json.dumps(report) if args.json else bench_report.as_text(report, notes))
        if profile is not None and not args.json:
            print(f"\n{args.profile}\n\n{profile.table()}")
    context.group("world").barrier()


def _profiled(step: Step, context: ParallelContext) -> Finished:
    from edgedit.parallel.timeline import Timeline

    context.timeline = Timeline()
    step()  # makes the views of the nodes
    timeline = context.timeline = Timeline()
    for index in range(_PROFILED_STEPS):
        context.note(step=index + 1, phase="profile")
        step()
    context.timeline = None
    return finish(timeline, context)


@dataclass(frozen=True)
class Timing:
    """Seconds of one step on this rank; what is none of the last three is overhead."""

    step_s: float
    compute_s: float
    exchange_s: float
    wait_s: float


class Step:
    """One denoising step without the solver, ready to run again: all guidance branches, and their exchange."""

    def __init__(self, subject: Subject, context: ParallelContext) -> None:
        from edgedit.pipelines.branches import Branches

        self._context = context
        self.branches: Branches = Branches(context, context.config.cfg_degree)
        context.note(phase="loading weights")
        self.transformer = subject.load(context)
        context.note(phase="planning")
        schedule = self.transformer.prepare(subject.batch, subject.image_tokens, subject.text_tokens)
        self.flops = schedule.flops * len(self.branches.own)
        request = subject.request()
        steps = request.pop("timestep")[None]
        pooled, guidance = request.pop("pooled_projections"), request.pop("guidance", None)
        context.note(phase="conditioning")
        self._inputs = {**request, "modulations": self.transformer.modulations(steps, pooled, guidance)[0]}

    def __call__(self) -> Timing:
        context = self._context
        context.group("world").barrier(label="start of a step")
        before, began = replace(context.times), time.perf_counter()
        self.branches.predict(lambda branch: self.transformer.velocity(**self._inputs))
        seconds, times = time.perf_counter() - began, context.times.since(before)
        return Timing(seconds, times.compute_s, times.exchange_s, times.wait_s)
