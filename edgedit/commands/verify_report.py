"""The report of ``edgedit verify``, as values and as text."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from edgedit import kernels
from edgedit.commands.layout_facts import layout_facts
from edgedit.config import ParallelConfig
from edgedit.graph.page import table

if TYPE_CHECKING:
    from edgedit.commands.difference import Difference
    from edgedit.commands.verification import BlockDifference, Findings

# What a layout may do to the latents with that type on the wire or in products: a rounding of it, grown over steps.
_TOLERANCES = {"f32": 1e-4, "f16": 1e-2}
_COARSE_TOLERANCE = 1e-1


def default_tolerance(config: ParallelConfig, dtype: str, quantised_compute: str) -> float:
    """The largest relative difference that rounding explains."""
    if quantised_compute != "exact":
        return _COARSE_TOLERANCE
    types = config.wire_dtype_for(dtype), kernels.activations(config.kernels, dtype)
    return max(_TOLERANCES.get(word, _COARSE_TOLERANCE) for word in types)


def report(
    args: argparse.Namespace, config: ParallelConfig, findings: Findings, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Plain values. An infinite PSNR, that of equal pictures, is None there."""
    tolerance = args.tolerance
    if tolerance is None:
        tolerance = default_tolerance(config, args.dtype, args.quantised_compute)
    beyond, differing = findings.first_beyond(tolerance), findings.first_beyond(0.0)
    return {
        "model": args.model,
        "dtype": args.dtype,
        "quantised_compute": args.quantised_compute,
        **layout_facts(config),
        "wire_dtype": config.wire_dtype_for(args.dtype),
        "tolerance": tolerance,
        "steps": [{"step": step, **_values(d)} for step, d in enumerate(findings.steps, 1)],
        "block_step": args.block_step,
        "blocks": [_block(block) for block in findings.blocks],
        "first_differing_block": _block(differing) if differing else None,
        "first_block_beyond_tolerance": _block(beyond) if beyond else None,
        "wire": _values(findings.wire) if findings.wire else None,
        "psnr_db": findings.psnr_db if math.isfinite(findings.psnr_db) else None,
        "same_pictures": math.isinf(findings.psnr_db),
        "passed": findings.is_within(tolerance),
        "notes": list(notes),
    }


def _values(difference: Difference) -> dict[str, float | None]:
    """JSON has no infinities and no NaN: None stands for them."""
    return {name: x if math.isfinite(x) else None for name, x in asdict(difference).items()}


def _block(block: BlockDifference) -> dict[str, Any]:
    return {
        "branch": block.branch,
        "block": block.block,
        "stream": block.stream,
        **_values(block.difference),
    }


def as_text(report: Mapping[str, Any]) -> str:
    used = [f"{axis} {degree}" for axis, degree in report["axes"].items() if degree > 1]
    layout = [*used, *(report[name] for name in ("backend", "comm", "ops", "kernels"))]
    tolerance, beyond = report["tolerance"], report["first_block_beyond_tolerance"]
    last, differing = report["steps"][-1], report["first_differing_block"]
    picture = (
        "the pictures are equal"
        if report["same_pictures"]
        else f"PSNR of the pictures {report['psnr_db']:.1f} dB"
    )
    lines = [
        f"{report['model']}, {report['dtype']}: {', '.join(layout)}, wire {report['wire_dtype']}, against one rank",
        "",
        *table(
            [["after step", "relative", "largest"], *([str(s["step"]), *_shown(s)] for s in report["steps"])]
        ),
        "",
        *table(_block_rows(report)),
        "",
        f"final latents differ by {_number(last['relative'])} (relative); {picture}",
        f"first block that differs: {_place(differing)}",
        f"first block that differs by more than {tolerance:g}: {_place(beyond)}",
    ]
    if report["wire"]:
        lines.append(
            f"of which the wire's {report['wire_dtype']} alone: {_number(report['wire']['relative'])} a step"
        )
    lines.append(
        "passed" if report["passed"] else f"failed: a difference is above the tolerance of {tolerance:g}"
    )
    return "\n".join([*lines, *(f"note: {note}" for note in report["notes"])])


def _block_rows(report: Mapping[str, Any]) -> list[list[str]]:
    return [
        [f"in step {report['block_step']}", "branch", "stream", "relative", "largest"],
        *([b["block"], str(b["branch"]), b["stream"], *_shown(b)] for b in report["blocks"]),
    ]


def _shown(values: Mapping[str, Any]) -> list[str]:
    return [_number(values["relative"]), _number(values["largest"])]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1e}" if value else "0"


def _place(block: Mapping[str, Any] | None) -> str:
    if block is None:
        return "none"
    return f"{block['block']}, {block['stream']}, branch {block['branch']}: {_number(block['relative'])}"
