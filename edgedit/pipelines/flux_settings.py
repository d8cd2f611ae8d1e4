"""What the configs of a FLUX.1 directory say, read without weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgedit.config import ParallelConfig, check_heads, check_supported
from edgedit.models.tokenizers import Tokenizer
from edgedit.pipelines.request import MAX_SEQUENCE_LENGTH, Limits
from edgedit.pipelines.settings import Settings, read_json
from edgedit.sampling.schedule import FlowMatchSchedule

AXES = ("cfg", "ulysses")
COMPONENTS = {
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "T5EncoderModel",
    "transformer": "FluxTransformer2DModel",
    "vae": "AutoencoderKL",
}
_DEFAULT_LATENT_SIZE = 128  # diffusers' default_sample_size


@dataclass(frozen=True)
class FluxSettings(Settings):
    """The configs of a FLUX pipeline."""

    family = "FluxPipeline"

    directory: Path
    limits: Limits
    schedule: FlowMatchSchedule
    num_heads: int
    guidance_embeds: bool
    scaling_factor: float
    shift_factor: float

    @classmethod
    def read(cls, directory: Path) -> FluxSettings:
        index = read_json(directory / "model_index.json")
        for component, expected in COMPONENTS.items():
            name = (index.get(component) or [None, None])[1]
            if name != expected:
                raise ValueError(f"{directory}: {component} is {name!r}; supported is {expected!r}")
        transformer = read_json(directory / "transformer" / "config.json")
        vae = read_json(directory / "vae" / "config.json")
        vae_scale = 2 ** (len(vae["block_out_channels"]) - 1)
        size = vae.get("sample_size") or 0
        if size < 1 or size % (2 * vae_scale):
            size = _DEFAULT_LATENT_SIZE * vae_scale
        scheduler = read_json(directory / "scheduler" / "scheduler_config.json")
        length = Tokenizer.from_dir(directory / "tokenizer_2").model_max_length or MAX_SEQUENCE_LENGTH
        return cls(
            directory=directory,
            limits=Limits(
                size=size,
                multiple=2 * vae_scale,
                latent_channels=transformer.get("in_channels", 64) // 4,
                max_sequence_length=min(length, MAX_SEQUENCE_LENGTH),
            ),
            schedule=FlowMatchSchedule.from_config(scheduler),
            num_heads=transformer.get("num_attention_heads", 24),
            guidance_embeds=transformer.get("guidance_embeds", False),
            scaling_factor=vae.get("scaling_factor") or 1.0,
            shift_factor=vae.get("shift_factor") or 0.0,
        )

    def lines(self) -> list[str]:
        """One line for each setting that can change a bit of the result, for ranks to compare."""
        names = ("limits", "schedule", "num_heads", "guidance_embeds", "scaling_factor", "shift_factor")
        return [f"{name} = {getattr(self, name)!r}" for name in names]

    def check_parallel(self, config: ParallelConfig) -> None:
        check_supported(config, AXES, self.family)
        check_heads(self.num_heads, config, self.family)
