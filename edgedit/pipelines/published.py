"""What surrounds the transformers of published models: the parts of their pipelines, and what files leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FLUX_DEV_SHIFT = {
    "shift": 3.0, "use_dynamic_shifting": True, "base_shift": 0.5, "max_shift": 1.15,
    "base_image_seq_len": 256, "max_image_seq_len": 4096,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A kind of pipeline.

    pipeline     class name in model_index.json
    aliases      others: pipelines of the same parts that begin with a picture
    components   part and class name of each network, by its name in a directory
    tokenizers   the network that each serves
    optional     parts that it can do without
    defaults     what configs of published parts say that tensors do not
    """

    pipeline: str
    components: Mapping[str, tuple[str, str]]
    tokenizers: Mapping[str, str]
    aliases: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    defaults: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def needed(self) -> dict[str, str]:
        """Class names of the components that it cannot do without."""
        return {name: kind for name, (part, kind) in self.components.items() if part not in self.optional}

    def component(self, part: str) -> str | None:
        """The name in a directory of a part."""
        return next((name for name, (kind, _) in self.components.items() if kind == part), None)

    def tokenizers_of(self, classes: Mapping[str, str | None]) -> list[str]:
        """Those of the networks that there are."""
        return [name for name, network in self.tokenizers.items() if classes.get(network) is not None]

    def scheduler(self, transformer: Mapping[str, Any]) -> dict[str, Any]:
        """Content of scheduler_config.json for a transformer: FLUX.1-dev takes guidance and shifts by size, schnell
        does neither, Stable Diffusion 3 shifts always alike."""
        if self is SD3:
            return {"num_train_timesteps": 1000, "shift": 3.0}
        shift = FLUX_DEV_SHIFT if transformer.get("guidance_embeds") else {"shift": 1.0}
        return {"num_train_timesteps": 1000, **shift}


FLUX = Family(
    "FluxPipeline",
    {
        "transformer": ("transformer", "FluxTransformer2DModel"),
        "vae": ("vae", "AutoencoderKL"),
        "text_encoder": ("clip_l", "CLIPTextModel"),
        "text_encoder_2": ("t5", "T5EncoderModel"),
    },
    {"tokenizer": "text_encoder", "tokenizer_2": "text_encoder_2"},
    aliases=("FluxFillPipeline", "FluxImg2ImgPipeline", "FluxInpaintPipeline", "FluxKontextPipeline"),
    defaults={"vae": {"scaling_factor": 0.3611, "shift_factor": 0.1159}},
)
SD3 = Family(
    "StableDiffusion3Pipeline",
    {
        "transformer": ("transformer", "SD3Transformer2DModel"),
        "vae": ("vae", "AutoencoderKL"),
        "text_encoder": ("clip_l", "CLIPTextModelWithProjection"),
        "text_encoder_2": ("clip_g", "CLIPTextModelWithProjection"),
        "text_encoder_3": ("t5", "T5EncoderModel"),
    },
    {"tokenizer": "text_encoder", "tokenizer_2": "text_encoder_2", "tokenizer_3": "text_encoder_3"},
    aliases=("StableDiffusion3Img2ImgPipeline", "StableDiffusion3InpaintPipeline"),
    optional=("t5",),
    defaults={"vae": {"scaling_factor": 1.5305, "shift_factor": 0.0609}},
)
FAMILIES = (FLUX, SD3)
PIPELINES = tuple(name for family in FAMILIES for name in (family.pipeline, *family.aliases))


def family_of_pipeline(name: str) -> Family | None:
    """The family of a pipeline's class name."""
    return next((family for family in FAMILIES if name in (family.pipeline, *family.aliases)), None)


def family_of_transformer(name: str) -> Family:
    """The family of a transformer's class name. ValueError for one that has none."""
    for family in FAMILIES:
        if family.components["transformer"][1] == name:
            return family
    known = ", ".join(family.components["transformer"][1] for family in FAMILIES)
    raise ValueError(f"transformer {name!r} is not supported; supported: {known}")
