"""Whether parts belong together, told from their configs before any weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit.pipelines.published import FAMILIES, Family
from edgedit.weights.configs import read_json

if TYPE_CHECKING:
    from edgedit.pipelines.parts import Parts

_PROJECTED = "WithProjection"  # of a CLIP encoder's class name: the network is the same
_KNOWN = {kind.removesuffix(_PROJECTED) for family in FAMILIES for _, kind in family.components.values()}


def class_of(directory: Path) -> str:
    """The class that a component's directory names. ValueError where config.json is missing or malformed."""
    config = read_json(directory / "config.json")
    architectures = config.get("architectures")
    names = [config.get("_class_name"), *(architectures if isinstance(architectures, list) else [])]
    return str(next((name for name in names if name), None))


def check_class(part: str, path: Path, found: str, family: Family) -> None:
    """Raises ValueError for a network of a known class that is not the one of a part."""
    component = family.component(part)
    if component is None:
        return
    expected = family.components[component][1]
    kind = found.removesuffix(_PROJECTED)
    if kind in _KNOWN and kind != expected.removesuffix(_PROJECTED):
        raise ValueError(f"{path} is given for {part}, but holds {found}; {family.pipeline} needs {expected}")


def check_tokenizer(directory: Path, encoder: str) -> None:
    """Raises ValueError for a tokenizer of another kind of encoder, whose ids would mean other words.

    CLIP's put a token before every text and T5's do not. CheckpointError where it cannot be read.
    """
    from edgedit.models.tokenizers import Tokenizer

    is_of_clip = bool(Tokenizer.from_dir(directory, warns=False).prefix_ids)
    if is_of_clip != encoder.startswith("CLIP"):
        kind = "CLIP" if is_of_clip else "T5"
        raise ValueError(f"{directory} is a tokenizer of {kind}, where one of {encoder} is needed")


def check_width(parts: Parts, network: str, field_taken: str, fields: Mapping[str, str]) -> None:
    """Raises ValueError where what other networks give is not as wide as what `network` takes.

    Args:
        network: a component.
        field_taken: the field of its config that says how many channels it takes.
        fields: by component, the field of its config that says how many it gives; they stand side by side.
    """
    taken = stated(parts, network, field_taken)
    given = {name: stated(parts, name, field) for name, field in fields.items()}
    widths = [width for width in given.values() if width is not None]
    if taken is None or len(widths) < len(given) or sum(widths) == taken:
        return
    have = " and ".join(
        f"{name} gives {width} ({fields[name]}, {_place(parts, name)})" for name, width in given.items()
    )
    raise ValueError(
        f"{parts.title}: {network} takes {taken} channels ({field_taken}), but {have}; they are of different models"
    )


def check_latents(parts: Parts, channels: int) -> None:
    """Raises ValueError where the autoencoder's latents have other channels than those that are denoised."""
    given = stated(parts, "vae", "latent_channels")
    if given not in (None, channels):
        raise ValueError(
            f"{parts.title}: transformer denoises latents of {channels} channels, but vae has {given} "
            f"(latent_channels, {_place(parts, 'vae')}); they are of different models"
        )


def stated(parts: Parts, component: str, field: str) -> int | None:
    """A size in a component's config, None where it states none or is missing, which loading names."""
    where = parts.networks[component]
    if isinstance(where, Path) and not (where / "config.json").is_file():
        return None
    config: Mapping[str, Any] = parts.config(component)
    inner = config.get("text_config")  # of a whole CLIP model
    value = (inner if isinstance(inner, dict) and inner else config).get(field)
    return value if type(value) is int else None


def _place(parts: Parts, component: str) -> Path:
    """Where a network is, for messages."""
    where = parts.networks[component]
    return where if isinstance(where, Path) else where.source.path
