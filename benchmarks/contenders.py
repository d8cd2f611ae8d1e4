"""The contenders of denoise.py by name: `who:dtype`, or `edgedit:dtype:int8` for products in integers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

DEFAULT = [
    *(f"edgedit:{kind}" for kind in ("f32", "bf16", "q8_0", "q4_k", "q8_0:int8", "q4_k:int8")),
    *(f"ggml:{dtype}" for dtype in ("f32", "bf16", "q8_0", "q4_k")),
    *(f"diffusers:{dtype}" for dtype in ("f32", "bf16")),
]
COMPILED = ["compiled:f32", "compiled:bf16"]
ORACLE = "diffusers:f32"
PEAK = "peak"  # takes turns like a contender
# Which process runs a contender. What is compiled has one of its own, which may be ended if it takes too long.
_CREWS = {
    "edgedit": "edgedit",
    "ggml": "edgedit",
    PEAK: "edgedit",
    "diffusers": "diffusers",
    "compiled": "compiled",
}


def crew_of(contender: str) -> str:
    """The process that runs a contender: edgedit, diffusers or compiled."""
    return _CREWS[contender.partition(":")[0]]


def options_of(contender: str, kernels: str, request: Path) -> dict[str, Any]:
    """What the process of a contender is told to prepare. Raises ValueError for a name that is none."""
    who, _, rest = contender.partition(":")
    dtype, _, compute = rest.partition(":")
    if who not in _CREWS or not dtype or compute not in ("", "int8") or (compute and who != "edgedit"):
        raise ValueError(f"contender {contender!r} is not like edgedit:q8_0:int8, ggml:f32 or diffusers:bf16")
    options: dict[str, Any] = {"dtype": dtype, "requests": [str(request)]}
    if crew_of(contender) == "edgedit":
        return options | {"kernels": "ggml" if who == "ggml" else kernels, "compute": compute or "exact"}
    return options | ({"compiled": True} if who == "compiled" else {})


def baselines(name: str, contenders: Sequence[str]) -> list[str]:
    """What a contender is compared with: peers of any type, stock ggml with its weights, its own exact products."""
    who, dtype, *compute = name.split(":")
    wanted = set()
    if who == "edgedit":
        wanted |= {f"ggml:{dtype}"} | ({f"edgedit:{dtype}"} if compute else set())
    if who != "diffusers":
        wanted |= {other for other in contenders if other.startswith(("diffusers:", "compiled:"))}
    return [other for other in contenders if other in wanted - {name}]
