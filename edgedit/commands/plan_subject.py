"""What `edgedit plan` plans: a network's config and the sizes of a request, found without weights."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit import embedded, presets
from edgedit.commands.image_arguments import image_size
from edgedit.commands.request_arguments import request_options
from edgedit.pipelines.image_inputs import (
    DEFAULT_STRENGTHS,
    FILL,
    REFERENCE,
    START,
    check_options,
    first_step,
    reference_size,
)
from edgedit.pipelines.parts import EMBEDDED
from edgedit.pipelines.request import MAX_SEQUENCE_LENGTH, Limits, Request
from edgedit.pipelines.settings import read_settings
from edgedit.weights.configs import read_json

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
    """The subject called `model`: a preset, "embedded", a directory in diffusers layout (configs are enough), a
    transformer's config.json or its directory, or a file with its weights. Raises ValueError for anything else."""
    if model in presets.names():
        preset = presets.read(model)
        size, scale, length = (preset[key] for key in ("size_px", "vae_scale", "max_sequence_length"))
        return _subject(preset["title"], preset["transformer"], size, scale, length, preset.get("pipeline"))
    path = embedded.path() if model == EMBEDDED else Path(model)
    if (path / "model_index.json").is_file():
        return _pipeline("The embedded model" if model == EMBEDDED else path.resolve().name, path)
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file():
        raise ValueError(
            f"model {model!r} is none of {', '.join([EMBEDDED, *presets.names()])}, nor a directory with "
            f"model_index.json, nor a transformer's config.json or weights"
        )
    content = read_json(config) if config.suffix == ".json" else _config_in(config)
    return _subject(str(path), content, _SIZE_PX, _VAE_SCALE, MAX_SEQUENCE_LENGTH)


def _config_in(file: Path) -> dict[str, Any]:
    """What the tensors of a file tell of its transformer. CheckpointError where it holds none."""
    from edgedit.weights.recognise import find_transformer
    from edgedit.weights.sources import open_source
    from edgedit.weights.told import config_of

    return config_of(find_transformer(open_source(file)))


def request_of(args: argparse.Namespace, subject: Subject) -> Request:
    """The request of a command line. ValueError for one that the subject's pipeline does not take."""
    return Request.create(
        subject.limits,
        "plan",
        "plan",
        **request_options(args),
    )


def work_of_image(args: argparse.Namespace, subject: Subject, request: Request) -> tuple[int, int]:
    """Image tokens that the transformer reads, and steps that run, with the picture of a command line, if it tells of
    one. ValueError for one that the subject's pipeline does not take."""
    limits, steps = subject.limits, request.num_inference_steps
    tokens = limits.image_tokens(request.height, request.width)
    size = image_size(args)
    fills = FILL in limits.image_uses
    starts = args.strength is not None and START in (args.image_as, limits.image_uses[0])
    has_image = fills or size is not None or starts
    use = check_options(
        limits.image_uses,
        steps,
        has_image=has_image,
        has_mask=fills,
        strength=args.strength,
        image_as=args.image_as,
        resize=not args.keep_image_size,
    )
    if not has_image:
        return tokens, steps
    if use == REFERENCE:
        assert size is not None, "a reference has a size"
        reference = reference_size(size, limits.multiple, not args.keep_image_size)
        return tokens + limits.image_tokens(*reference), steps
    strength = DEFAULT_STRENGTHS[use] if args.strength is None else args.strength
    return tokens, steps - first_step(strength, steps)


def _pipeline(title: str, directory: Path) -> Subject:
    transformer = read_json(directory / "transformer" / "config.json")
    scale, size = _VAE_SCALE, None
    if (directory / "vae" / "config.json").is_file():
        vae = read_json(directory / "vae" / "config.json")
        scale, size = 2 ** (len(vae["block_out_channels"]) - 1), vae.get("sample_size")
    name = read_json(directory / "model_index.json").get("_class_name")
    subject = _subject(title, transformer, size or _SIZE_PX, scale, MAX_SEQUENCE_LENGTH, name)
    if not all((directory / name).exists() for name in _PIPELINE_FILES):
        return subject
    settings = read_settings(directory)
    return replace(subject, limits=settings.limits, fixed_text_tokens=settings.fixed_text_tokens)


def _subject(
    title: str,
    transformer: dict[str, Any],
    size: int,
    vae_scale: int,
    length: int,
    pipeline: str | None = None,
) -> Subject:
    from edgedit.models.architectures import transformer_class
    from edgedit.models.sd3 import SD3Config
    from edgedit.pipelines import flux_settings
    from edgedit.pipelines.sd3_settings import CLIP_TOKENS, limits_of

    network = transformer_class(transformer)
    config = network.config_class.from_dict(transformer)
    if isinstance(config, SD3Config):
        return Subject(title, network, config, limits_of(config, vae_scale), CLIP_TOKENS)
    return Subject(
        title, network, config, flux_settings.limits_of(transformer, pipeline, size, vae_scale, length)
    )
