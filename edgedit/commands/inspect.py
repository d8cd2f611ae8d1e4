"""``edgedit inspect``: what is in a model's directory, a component of one, or a file of weights."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from edgedit import embedded
from edgedit.commands.inspection import inspect
from edgedit.pipelines.parts import EMBEDDED

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a pipeline's directory, a component's, a safetensors, GGUF or LoRA file (default: the embedded model)"
    parser.add_argument("model", nargs="?", default=EMBEDDED, help=what)
    parser.add_argument("--tensors", action="store_true", help="list every tensor with its type and shape")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """0, or 1 where something is missing, damaged or not supported."""
    path = embedded.path() if args.model == EMBEDDED else Path(args.model)
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    report = inspect(path, args.tensors)
    print(json.dumps(report) if args.json else as_text(report))
    return 1 if report["problems"] else 0


def as_text(report: dict[str, Any]) -> str:
    """The report for reading."""
    lines = [report["path"]]
    if report["family"]:
        lines.append(f"{report['family']}, {'supported' if report['supported'] else 'not supported'}")
    if "default_size_px" in report:
        size, multiple = report["default_size_px"], report["size_multiple_px"]
        lines.append(f"draws {size} x {size} px by default, sides are multiples of {multiple} px")
        lines.append(f"reads {report['max_sequence_length']} text tokens by default")
    rows = [("component", "class", "parameters", "types", "bytes", "files")]
    for part in report["components"]:
        types = ", ".join(f"{dtype} x {count}" for dtype, count in part.get("dtypes", {}).items())
        files = part.get("files", [])
        rows.append((
            part["name"],
            part["class"] or "",
            _short(part["parameters"]) if "parameters" in part else "",
            types,
            _short(part["nbytes"]) + "B" if "nbytes" in part else "",
            files[0] if len(files) == 1 else f"{len(files)} files" if files else "",
        ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += ["", *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                    for row in rows)]  # fmt: skip
    lines.append(f"in all {_short(report['parameters'])} parameters, {_short(report['nbytes'])}B")
    lines += [line for part in report["components"] for line in _about(part)]
    if report["needs"]:
        lines.append(f"needs besides: {', '.join(report['needs'])}")
    for part in report["components"]:
        for tensor in part.get("tensor_list", ()):
            lines.append(f"  {part['name']}  {tensor['name']}  {tensor['dtype']}  {tensor['shape']}")
    lines += [f"problem: {problem}" for problem in report["problems"]]
    return "\n".join(lines)


def _about(part: dict[str, Any]) -> list[str]:
    """Kind and configuration of a network; ranks and scales of a LoRA."""
    if "ranks" in part:
        ranks, scales = (", ".join(f"{value:g}" for value in part[key]) for key in ("ranks", "scales"))
        return [f"{part['name']}: LoRA for {part['modules']} modules, ranks {ranks}, scales {scales}"]
    if "architecture" not in part:
        return []
    below = f" under {part['prefix']!r}" if part["prefix"] else ""
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in part.get("config", {}).items())
    return [f"{part['name']}: {part['architecture']}, {part['spelling']!r} names{below}; {config}"]


def _short(number: int) -> str:
    for unit, letter in _UNITS:
        if number >= unit:
            return f"{number / unit:.3g} {letter}"
    return f"{number} "
