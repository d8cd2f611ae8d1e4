"""What the configs of a directory say about its transformer, scheduler and autoencoder, whatever its family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from edgedit.config import DEVICE_BACKENDS, ParallelConfig, check_heads, check_supported
from edgedit.pipelines.request import Limits
from edgedit.pipelines.settings import Settings, read_json
from edgedit.sampling.schedule import FlowMatchSchedule

AXES = ("cfg", "dp", "ulysses", "kv_gather", "tp", "vae")


@dataclass(frozen=True)
class TextToImageSettings(Settings):
    """Fields that can change a bit of the result, but for the directory."""

    directory: Path
    limits: Limits
    schedule: FlowMatchSchedule
    num_heads: int
    scaling_factor: float
    shift_factor: float

    def lines(self) -> list[str]:
        """One line for each setting that can change a bit of the result, for ranks to compare."""
        names = [field.name for field in fields(self) if field.name != "directory"]
        return [f"{name} = {getattr(self, name)!r}" for name in names]

    def check_parallel(self, config: ParallelConfig) -> None:
        check_supported(config, AXES, self.family)
        check_heads(self.num_heads, config, self.family)
        if config.vae_degree > 1 and config.backend in DEVICE_BACKENDS:
            raise ValueError(
                f"vae_degree is {config.vae_degree}, but pictures are decoded on the host, which backend "
                f"{config.backend} does not connect; legal with it: 1"
            )


def check_components(directory: Path, expected: Mapping[str, str]) -> dict[str, str | None]:
    """Class names of the components in model_index.json, None for those that are left out.

    Raises ValueError where one of `expected` has another class.
    """
    index = read_json(directory / "model_index.json")
    names = {
        component: entry[1]
        for component, entry in index.items()
        if isinstance(entry, list) and len(entry) == 2
    }
    for component, name in expected.items():
        if names.get(component) != name:
            raise ValueError(f"{directory}: {component} is {names.get(component)!r}; supported is {name!r}")
    return names


def vae_scale(vae: Mapping[str, Any]) -> int:
    """Pixels per latent position, along each side."""
    return 2 ** (len(vae["block_out_channels"]) - 1)


def common_fields(directory: Path, vae: Mapping[str, Any]) -> dict[str, Any]:
    """The directory, the schedule and the scaling of latents."""
    scheduler = read_json(directory / "scheduler" / "scheduler_config.json")
    return {
        "directory": directory,
        "schedule": FlowMatchSchedule.from_config(scheduler),
        "scaling_factor": vae.get("scaling_factor") or 1.0,
        "shift_factor": vae.get("shift_factor") or 0.0,
    }
