"""``edgedit inspect``: what is in a model directory, a component of one, or a safetensors file."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from edgedit import embedded
from edgedit.errors import CheckpointError
from edgedit.pipelines.configs import read_json
from edgedit.pipelines.parts import EMBEDDED
from edgedit.pipelines.settings import PIPELINES, read_settings
from edgedit.weights.checkpoint import Checkpoint

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a pipeline's directory, a component's, or a safetensors file (default: the embedded model)"
    parser.add_argument("model", nargs="?", default=EMBEDDED, help=what)
    parser.add_argument("--tensors", action="store_true", help="list every tensor with its type and shape")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """0, or 1 where something is missing, damaged or not supported."""
    path = embedded.path() if args.model == EMBEDDED else Path(args.model)
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    report = describe(path, args.tensors)
    print(json.dumps(report) if args.json else as_text(report))
    return 1 if report["problems"] else 0


def describe(path: Path, with_tensors: bool = False) -> dict[str, Any]:
    """The content of ``path``; what is wrong with it stands under ``problems``."""
    report: dict[str, Any] = {"path": str(path), "family": None, "supported": None}
    if (path / "model_index.json").is_file():
        index = read_json(path / "model_index.json")
        report["family"] = index.get("_class_name")
        report["supported"] = report["family"] in PIPELINES
        parts = {
            name: entry[1]
            for name, entry in index.items()
            if isinstance(entry, list) and len(entry) == 2 and entry[1] is not None
        }
        components = [_component(name, kind, path / name, with_tensors) for name, kind in parts.items()]
    else:
        components = [_component(path.name, _class_name(path), path, with_tensors)]
    report["components"] = components
    report["parameters"] = sum(component.get("parameters", 0) for component in components)
    report["nbytes"] = sum(component.get("nbytes", 0) for component in components)
    report["problems"] = [problem for component in components for problem in component.pop("problems")]
    if report["supported"]:
        try:
            limits = read_settings(path).limits
            report["default_size_px"] = limits.size
            report["size_multiple_px"] = limits.multiple
            report["max_sequence_length"] = limits.max_sequence_length
        except (ValueError, KeyError) as error:
            report["problems"].append(str(error))
    elif report["family"]:
        report["problems"].append(
            f"pipeline {report['family']} is not supported; supported: {', '.join(PIPELINES)}"
        )
    report["problems"] = list(dict.fromkeys(report["problems"]))
    return report


def _component(name: str, kind: str | None, path: Path, with_tensors: bool) -> dict[str, Any]:
    """One component: a model with weights, or a tokenizer or scheduler with files only."""
    component: dict[str, Any] = {"name": name, "class": kind, "problems": []}
    if not path.exists():
        component["problems"].append(f"{path} is missing")
        return component
    if path.is_dir() and not _holds_weights(path):
        component["files"] = sorted(file.name for file in path.iterdir() if file.is_file())
        if (path / "config.json").is_file():
            component["problems"].append(f"{path} has a config.json but no weights")
        return component
    try:
        checkpoint = Checkpoint.open(path)
    except CheckpointError as error:
        component["problems"].append(str(error))
        return component
    keys = checkpoint.keys()
    component["tensors"] = len(keys)
    component["parameters"] = sum(_count(checkpoint.shape(key)) for key in keys)
    component["dtypes"] = dict(Counter(checkpoint.dtype(key) for key in keys).most_common())
    component["nbytes"] = checkpoint.nbytes
    component["files"] = sorted({checkpoint.file(key).name for key in keys})
    if with_tensors:
        component["tensor_list"] = [
            {"name": key, "dtype": checkpoint.dtype(key), "shape": list(checkpoint.shape(key))}
            for key in keys
        ]
    return component


def _holds_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors*")) or any(folder.glob("*.bin"))


def _class_name(path: Path) -> str | None:
    config = path / "config.json"
    if not config.is_file():
        return None
    content = read_json(config)
    return content.get("_class_name") or (content.get("architectures") or [None])[0]


def _count(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


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
    for part in report["components"]:
        for tensor in part.get("tensor_list", ()):
            lines.append(f"  {part['name']}  {tensor['name']}  {tensor['dtype']}  {tensor['shape']}")
    lines += [f"problem: {problem}" for problem in report["problems"]]
    return "\n".join(lines)


def _short(number: int) -> str:
    for unit, letter in _UNITS:
        if number >= unit:
            return f"{number / unit:.3g} {letter}"
    return f"{number} "
