"""Architectures of published models, to plan for them without downloading anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def read(name: str) -> dict[str, Any]:
    """A preset: `transformer` is the network's config.json, the rest what the pipeline around it fixes."""
    return json.loads((_FOLDER / f"{name}.json").read_text())
