"""LoRA files that a pipeline is loaded with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit.weights.lora_config import check_mode

if TYPE_CHECKING:
    from edgedit.weights.deltas import Deltas

Given = str | Path | tuple[str | Path, float]


@dataclass(frozen=True)
class Loras:
    """Files, each with the weight of what it adds, and the way to add it: "merge" or "apart"."""

    files: tuple[tuple[Path, float], ...] = ()
    mode: str = "merge"

    @classmethod
    def of(cls, given: Sequence[Given], mode: str = "merge") -> Loras:
        """From paths, or pairs of a path and a weight. ValueError for one that is missing, weights that are not finite
        and an unknown mode."""
        pairs = [item if isinstance(item, tuple) else (item, 1.0) for item in given]
        files = tuple((Path(path), float(weight)) for path, weight in pairs)
        for path, weight in files:
            if not path.exists():
                raise ValueError(f"LoRA {path} does not exist")
            if not math.isfinite(weight):
                raise ValueError(f"LoRA {path} has the weight {weight}; it must be a finite number")
        return cls(files, check_mode(mode))

    @property
    def names(self) -> list[str]:
        """FILE:WEIGHT of each, without directories."""
        return [f"{path.name}:{weight:g}" for path, weight in self.files]

    def lines(self) -> list[str]:
        """What ranks compare."""
        return [
            f"lora = {path.name}, {path.stat().st_size} bytes: {weight!r}, {self.mode}"
            for path, weight in self.files
        ]

    def deltas(self, family: str, networks: Mapping[str, Any], classes: Mapping[str, Any]) -> dict[str, Deltas]:
        """What the files add to each component of a pipeline; nothing is read but their headers.

        Args:
            family: of the pipeline.
            networks: where each component is: its directory, or what was found in a file.
            classes: of the components.

        Raises:
            CheckpointError: for files that are damaged or do not fit the model.
        """
        if not self.files:
            return {}
        from edgedit.models.adapters import adaptable
        from edgedit.weights.lora_spellings import PREFIXES, vocabulary
        from edgedit.weights.lora_targets import read_deltas

        vocabularies = []
        for component in PREFIXES[family]:
            if model := classes.get(component):
                weights = adaptable(model.build_network(model.open(networks[component])[0]))
                vocabularies.append(vocabulary(family, component, weights))
        return read_deltas(self.files, vocabularies)


def parse_lora(text: str) -> tuple[Path, float]:
    """FILE or FILE:WEIGHT."""
    path, colon, weight = text.rpartition(":")
    if not colon:
        return Path(text), 1.0
    try:
        return Path(path), float(weight)
    except ValueError:
        return Path(text), 1.0
