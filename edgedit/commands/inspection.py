"""What ``edgedit inspect`` finds: networks, their tensors and configuration, and what would be missing."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit.errors import CheckpointError
from edgedit.pipelines.parts import INDEX
from edgedit.pipelines.published import PIPELINES, family_of_transformer
from edgedit.pipelines.settings import read_settings
from edgedit.weights.configs import read_json

if TYPE_CHECKING:
    from edgedit.weights.recognise import Component
    from edgedit.weights.sources import TensorSource

Report = dict[str, Any]


def inspect(path: Path, with_tensors: bool = False) -> Report:
    """The content of ``path``, what is wrong with it under ``problems``, and what it needs besides under ``needs``."""
    report: Report = {"path": str(path), "family": None, "supported": None, "problems": [], "needs": []}
    if (path / INDEX).is_file():
        report["components"] = _of_pipeline(path, report, with_tensors)
    else:
        report["components"] = _of_weights(path.name, path, report["problems"], with_tensors)
        report["needs"] = _needs(path, report["components"])
    report["parameters"] = sum(component.get("parameters", 0) for component in report["components"])
    report["nbytes"] = sum(component.get("nbytes", 0) for component in report["components"])
    report["problems"] = list(dict.fromkeys(report["problems"]))
    return report


def _of_pipeline(path: Path, report: Report, with_tensors: bool) -> list[Report]:
    index = read_json(path / INDEX)
    report["family"] = index.get("_class_name")
    report["supported"] = report["family"] in PIPELINES
    components = []
    for name, entry in index.items():
        if isinstance(entry, list) and len(entry) == 2 and entry[1] is not None:
            components += _of_folder(name, entry[1], path / name, report["problems"], with_tensors)
    if not report["supported"]:
        report["problems"].append(
            f"pipeline {report['family']} is not supported; supported: {', '.join(PIPELINES)}"
        )
        return components
    try:
        limits = read_settings(path).limits
    except (ValueError, KeyError) as error:
        report["problems"].append(str(error))
        return components
    report["default_size_px"] = limits.size
    report["size_multiple_px"] = limits.multiple
    report["max_sequence_length"] = limits.max_sequence_length
    return components


def _of_folder(name: str, kind: str, path: Path, problems: list[str], with_tensors: bool) -> list[Report]:
    """A component of a pipeline: a network with weights, or a tokenizer or scheduler with files only."""
    component: Report = {"name": name, "class": kind}
    if not path.exists():
        problems.append(f"{path} is missing")
        return [component]
    if any(any(path.glob(pattern)) for pattern in ("*.safetensors*", "*.gguf", "*.bin")):
        return [
            {**found, "name": name, "class": kind}
            for found in _of_weights(name, path, problems, with_tensors)
        ]
    component["files"] = sorted(file.name for file in path.iterdir() if file.is_file())
    if (path / "config.json").is_file():
        problems.append(f"{path} has a config.json but no weights")
    return [component]


def _of_weights(name: str, path: Path, problems: list[str], with_tensors: bool) -> list[Report]:
    """The networks in a directory of weights or a file; a LoRA; or tensors that are none of these."""
    from edgedit.weights.recognise import find_components
    from edgedit.weights.sources import open_source

    try:
        source = open_source(path)
    except CheckpointError as error:
        problems.append(str(error))
        return [{"name": name, "class": None}]
    try:
        found = find_components(source)
    except CheckpointError as error:
        lora = _lora(source)
        if lora is None:
            problems.append(str(error))
        return [
            {"name": name, "class": None, **(lora or {}), **_tensors(source, source.keys(), with_tensors)}
        ]
    twice = [part for part, count in Counter(component.part for component in found).items() if count > 1]
    if twice:
        problems.append(f"{path}: holds more than one {', '.join(twice)}, of which none can be chosen")
    names = [name] if len(found) == 1 else [component.part for component in found]
    return [
        {"name": name, **_network(component, problems, with_tensors)}
        for name, component in zip(names, found, strict=True)
    ]


def _network(component: Component, problems: list[str], with_tensors: bool) -> Report:
    from edgedit.commands.networks import network_of
    from edgedit.weights.views import View

    view = component.source
    assert isinstance(view, View)
    keys = dict.fromkeys(origin.key for origin in view.origins.values())
    report = {
        "class": component.architecture.class_name,
        "part": component.part,
        "architecture": component.architecture.name,
        "spelling": component.spelling,
        "prefix": component.prefix,
        **_tensors(view.source, keys, with_tensors),
    }
    try:
        network = network_of(component)
    except ValueError as error:
        problems.append(str(error))
        return report
    match = network.match
    if match.problems:
        problems.append(f"{view.path}: {component.part}: {match.problems}")
    fields = {field.name for field in dataclasses.fields(network.model.config_class)}
    return report | {
        "class": network.config["_class_name"],
        "config": {name: value for name, value in network.config.items() if name in fields},
        "missing": match.missing,
        "unknown": match.unknown,
        "misshapen": match.misshapen,
    }


def _tensors(source: TensorSource, keys: Iterable[str], with_tensors: bool) -> Report:
    from edgedit.weights.quantisation import stored_nbytes

    keys = list(keys)
    report: Report = {
        "tensors": len(keys),
        "parameters": sum(math.prod(source.shape(key)) for key in keys),
        "dtypes": dict(Counter(source.dtype(key) for key in keys).most_common()),
        "nbytes": sum(stored_nbytes(source.dtype(key), source.shape(key)) for key in keys),
        "files": sorted({source.file(key).name for key in keys}),
    }
    if with_tensors:
        report["tensor_list"] = [
            {"name": key, "dtype": source.dtype(key), "shape": list(source.shape(key))} for key in keys
        ]
    return report


def _lora(source: TensorSource) -> Report | None:
    """What a LoRA says of itself; None where it is none."""
    from edgedit.weights.lora_file import read_lora

    try:
        factors = [pair for path in {source.file(key) for key in source} for pair in read_lora(path)]
    except CheckpointError:
        return None
    if not factors:
        return None
    return {
        "class": "LoRA",
        "modules": len(factors),
        "ranks": sorted({pair.rank for pair in factors}),
        "scales": sorted({pair.scale for pair in factors}),
    }


def _needs(path: Path, components: list[Report]) -> list[str]:
    """Options for the parts that a pipeline needs besides those of a file with a transformer."""
    parts = {component.get("part"): component["class"] for component in components}
    if not path.is_file() or "transformer" not in parts:
        return []
    family = family_of_transformer(parts["transformer"])
    wanted = [part for part, _ in family.components.values()]
    missing = [part for part in wanted if part not in parts and part not in family.optional]
    return [f"--{part.replace('_', '-')}" for part in (*missing, "tokenizer_dir")]
