"""What `edgedit plan` plans: a network's config and the sizes of a request, found without weights."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit import embedded, presets
from edgedit.pipelines.configs import read_json
from edgedit.pipelines.parts import EMBEDDED
from edgedit.pipelines.request import MAX_SEQUENCE_LENGTH, Limits, Request
from edgedit.pipelines.settings import read_settings

if TYPE_CHECKING:
    from edgedit.models.diffusion_transformer import DiffusionTransformer

# What surrounds the published models: for a network's config that stands alone.
_SIZE_PX, _VAE_SCALE = 1024, 8
# A directory with all of these is read as `edgedit generate` reads it.
_PIPELINE_FILES = ("tokenizer_2", "vae/config.json", "scheduler/scheduler_config.json")


@dataclass(frozen=True)
class Subject:
    """A network, its config, and what its pipeline allows.

    fixed_text_tokens  text tokens besides those that a request may limit
    """

    title: str
    network: type[DiffusionTransformer]
    config: Any
    limits: Limits
    fixed_text_tokens: int = 0


def find_subject(model: str) -> Subject:
    """The subject called `model`: a preset, "embedded", a directory in diffusers layout (configs are enough), or a
    transformer's config.json or its directory. Raises ValueError for anything else."""
    if model in presets.names():
        preset = presets.read(model)
        size, scale, length = (preset[key] for key in ("size_px", "vae_scale", "max_sequence_length"))
        return _subject(preset["title"], preset["transformer"], size, scale, length)
    path = embedded.path() if model == EMBEDDED else Path(model)
    if (path / "model_index.json").is_file():
        return _pipeline("The embedded model" if model == EMBEDDED else path.resolve().name, path)
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file():
        raise ValueError(
            f"model {model!r} is none of {', '.join([EMBEDDED, *presets.names()])}, nor a directory with "
            f"model_index.json, nor a transformer's config.json"
        )
    return _subject(str(path), read_json(config), _SIZE_PX, _VAE_SCALE, MAX_SEQUENCE_LENGTH)


def request_of(args: argparse.Namespace, subject: Subject) -> Request:
    """The request of a command line. ValueError for one that the subject's pipeline does not take."""
    return Request.create(
        subject.limits,
        "plan",
        "plan",
        num_inference_steps=args.steps,
        guidance_scale=args.guidance_scale,
        true_cfg_scale=args.true_cfg_scale,
        height=args.height,
        width=args.width,
        num_images_per_prompt=args.num_images,
        max_sequence_length=args.max_sequence_length,
    )


def _pipeline(title: str, directory: Path) -> Subject:
    transformer = read_json(directory / "transformer" / "config.json")
    scale, size = _VAE_SCALE, None
    if (directory / "vae" / "config.json").is_file():
        vae = read_json(directory / "vae" / "config.json")
        scale, size = 2 ** (len(vae["block_out_channels"]) - 1), vae.get("sample_size")
    subject = _subject(title, transformer, size or _SIZE_PX, scale, MAX_SEQUENCE_LENGTH)
    if not all((directory / name).exists() for name in _PIPELINE_FILES):
        return subject
    settings = read_settings(directory)
    return replace(subject, limits=settings.limits, fixed_text_tokens=settings.fixed_text_tokens)


def _subject(title: str, transformer: dict[str, Any], size: int, vae_scale: int, length: int) -> Subject:
    from edgedit.models.architectures import transformer_class
    from edgedit.models.sd3 import SD3Config
    from edgedit.pipelines.sd3_settings import CLIP_TOKENS, limits_of

    network = transformer_class(transformer)
    config = network.config_class.from_dict(transformer)
    if isinstance(config, SD3Config):
        return Subject(title, network, config, limits_of(config, vae_scale), CLIP_TOKENS)
    return Subject(title, network, config, Limits(size, 2 * vae_scale, config.in_channels // 4, length))
