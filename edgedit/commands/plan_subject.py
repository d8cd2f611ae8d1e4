"""What `edgedit plan` plans: a network's config and the sizes of a request, found without weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedit import embedded, presets
from edgedit.pipelines.request import MAX_SEQUENCE_LENGTH, Limits
from edgedit.pipelines.settings import EMBEDDED, read_json, read_settings

NETWORK = "FluxTransformer2DModel"
# What surrounds the published FLUX.1 models: for a network's config that stands alone.
_SIZE_PX, _VAE_SCALE = 1024, 8
# A directory with all of these is read as `edgedit generate` reads it.
_PIPELINE_FILES = ("tokenizer_2", "vae/config.json", "scheduler/scheduler_config.json")


@dataclass(frozen=True)
class Subject:
    """A network and what its pipeline allows."""

    title: str
    transformer: dict[str, Any]
    limits: Limits


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


def _pipeline(title: str, directory: Path) -> Subject:
    transformer = read_json(directory / "transformer" / "config.json")
    if all((directory / name).exists() for name in _PIPELINE_FILES):
        return Subject(title, _checked(transformer), read_settings(directory).limits)
    scale, size = _VAE_SCALE, None
    if (directory / "vae" / "config.json").is_file():
        vae = read_json(directory / "vae" / "config.json")
        scale, size = 2 ** (len(vae["block_out_channels"]) - 1), vae.get("sample_size")
    return _subject(title, transformer, size or _SIZE_PX, scale, MAX_SEQUENCE_LENGTH)


def _subject(title: str, transformer: dict[str, Any], size: int, vae_scale: int, length: int) -> Subject:
    channels = transformer.get("in_channels", 64) // 4
    return Subject(title, _checked(transformer), Limits(size, 2 * vae_scale, channels, length))


def _checked(transformer: dict[str, Any]) -> dict[str, Any]:
    name = transformer.get("_class_name", NETWORK)
    if name != NETWORK:
        raise ValueError(f"network {name!r} is not supported; supported: {NETWORK}")
    return transformer
