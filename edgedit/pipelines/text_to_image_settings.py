"""What configs say about its transformer, scheduler and autoencoder, whatever its family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from edgedit.config import DEVICE_BACKENDS, ParallelConfig, check_head_dim, check_heads, check_supported
from edgedit.models.autoencoder_config import AutoencoderKLConfig
from edgedit.pipelines.parts import Parts
from edgedit.pipelines.request import Limits, Request
from edgedit.pipelines.settings import Settings
from edgedit.sampling.schedule import FlowMatchSchedule

AXES = ("cfg", "dp", "ulysses", "ring", "kv_gather", "tp", "vae", "text_encoder")
_LARGEST = 1e6  # of any factor of latents


@dataclass(frozen=True)
class TextToImageSettings(Settings):
    """Fields that can change a bit of the result, but for the parts, which are where it is from."""

    parts: Parts
    limits: Limits
    schedule: FlowMatchSchedule
    num_heads: int
    head_dim: int
    scaling_factor: float
    shift_factor: float
    vae: AutoencoderKLConfig

    def request(self, prompt: Any, negative_prompt: Any = None, **options: Any) -> Request:
        request = super().request(prompt, negative_prompt, **options)
        if request.vae_tile is not None:
            from edgedit.models.tiled_decoding import check_tile

            check_tile(self.vae, request.vae_tile)
        return request

    def lines(self) -> list[str]:
        """One line for each setting that can change a bit of the result, for ranks to compare."""
        names = [field.name for field in fields(self) if field.name != "parts"]
        return [f"{name} = {getattr(self, name)!r}" for name in names]

    def check_parallel(self, config: ParallelConfig) -> None:
        check_supported(config, AXES, self.family)
        check_heads(self.num_heads, config, self.family)
        check_head_dim(config, self.head_dim, self.family)
        on_host = {"vae": "pictures are decoded", "text_encoder": "text is encoded"}
        for overlay, degree in config.overlays.items():
            if degree > 1 and config.backend in DEVICE_BACKENDS:
                raise ValueError(
                    f"{overlay}_degree is {degree}, but {on_host[overlay]} on the host, which backend "
                    f"{config.backend} does not connect; legal with it: 1"
                )
        if config.text_encoder_degree > 1:
            self._check_t5(config)

    def _check_t5(self, config: ParallelConfig) -> None:
        from edgedit.models.t5 import T5Config, T5EncoderModel

        names = [name for name, kind in self.parts.classes.items() if kind == T5EncoderModel.__name__]
        if not names:
            raise ValueError(
                f"text_encoder_degree is {config.text_encoder_degree}, but {self.parts.title} has no T5, the only "
                "encoder whose weights ranks share; legal: 1"
            )
        T5EncoderModel.check_parallel(T5Config.from_dict(self.parts.config(names[0])), config)


def vae_scale(vae: Mapping[str, Any]) -> int:
    """Pixels per latent position, along each side. ValueError for a config of no autoencoder."""
    return AutoencoderKLConfig.from_dict(vae).scale_factor


def common_fields(parts: Parts, vae: Mapping[str, Any]) -> dict[str, Any]:
    """The parts, the schedule and the scaling of latents."""
    return {
        "parts": parts,
        "schedule": FlowMatchSchedule.from_config(parts.scheduler()),
        "scaling_factor": _number(vae, "scaling_factor") or 1.0,
        "shift_factor": _number(vae, "shift_factor") or 0.0,
        "vae": AutoencoderKLConfig.from_dict(vae),
    }


def _number(config: Mapping[str, Any], name: str) -> float | None:
    value = config.get(name)
    if value is not None and (type(value) not in (int, float) or not abs(value) <= _LARGEST):
        raise ValueError(f"{name} is {value!r}; it must be a number")
    return value
