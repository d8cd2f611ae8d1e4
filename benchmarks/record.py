"""The record that is kept of a measurement: what was measured, on what, with which versions."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
# What decides which kernels of any contender run; the rest of the flags says nothing about them.
_TELLING = {"sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "asimd", "i8mm", "bf16"}
_TELLING_FAMILIES = ("avx512", "amx", "sve")


def save(name: str, measured: dict[str, Any], output: Path | None = None) -> Path:
    """Print the record and write it to results/NAME.json, or to `output`; returns where it is."""
    record = {"command": command(sys.argv), "commit": _commit(), **machine(), **measured}
    text = as_text(record)
    print(text)
    path = output or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    return path


def as_text(record: Mapping[str, Any]) -> str:
    """Indented JSON, in which a list of numbers or words takes one line."""
    text = json.dumps(record, indent=2)
    return re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text)


def command(words: Sequence[str]) -> str:
    """The command line without places of this machine: absolute paths are cut to their last part."""
    shown = [Path(word).name if os.path.isabs(word) else word for word in words[1:]]
    return " ".join(["python", f"benchmarks/{Path(words[0]).name}", *shown])


def machine() -> dict[str, Any]:
    """Processor, those of its flags that kernels are chosen by, and cores that may be used."""
    fields = _processor_fields()
    if fields:
        model = fields.get("model name", "?")
        processor = f"{model}, family {fields.get('cpu family')}, model {fields.get('model')}"
    else:
        processor = platform.processor()
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return {
        "processor": processor,
        "flags": telling_flags(flags),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def telling_flags(flags: Iterable[str]) -> list[str]:
    """The flags of instruction sets that kernels are chosen by."""
    return sorted({f for f in flags if f in _TELLING or f.startswith(_TELLING_FAMILIES)})


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of those packages that this interpreter has."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    """The short hash, marked where tracked files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent)
        return done.stdout.strip()

    changed = git(
        "status", "--porcelain", "--untracked-files=no", "--", "../edgedit", "../csrc", ".", ":!results"
    )
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def _processor_fields() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return {}
    fields = (line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in fields}
