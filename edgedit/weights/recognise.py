"""Which networks a file holds, told from the names of its tensors: one, or a whole pipeline's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from edgedit.errors import CheckpointError
from edgedit.weights.checkpoint import listing
from edgedit.weights.name_map import Architecture, Spelling, Target, architectures
from edgedit.weights.scales import with_scales
from edgedit.weights.sources import TensorSource
from edgedit.weights.views import Origin, View

CLIP_G_WIDTH = 1280  # of the larger of the two published CLIP encoders
_CLIP_PREFIXES = {"clip_l": ("clip_l.", "embedders.0."), "clip_g": ("clip_g.", "embedders.1.")}


@dataclass(frozen=True)
class Component:
    """One network of a file.

    part    transformer, vae, clip_l, clip_g or t5
    prefix  what stands before its names in the file
    source  its tensors, under the names of diffusers or transformers
    """

    architecture: Architecture
    spelling: str
    part: str
    prefix: str
    source: TensorSource


def holds(source: TensorSource, architecture: str) -> bool:
    """Whether a source has a network of an architecture, complete or not."""
    return any(found.name == architecture for found, _, _ in _signatures(source.keys()))


def find_transformer(source: TensorSource) -> Component:
    """The one denoising network that a source holds. Raises CheckpointError as `find_components`, and for none."""
    components = find_components(source)
    found = [component for component in components if component.part == "transformer"]
    if len(found) != 1:
        held = ", ".join(component.part for component in components)
        raise CheckpointError(f"{source.path}: holds {held}, where one transformer is needed")
    return found[0]


def component_of(source: TensorSource, architecture: str) -> Component:
    """The one network of an architecture that a source holds.

    Raises:
        CheckpointError: as `find_components`, and where there are none or several of them.
    """
    components = find_components(source)
    found = [component for component in components if component.architecture.name == architecture]
    if len(found) != 1:
        names = ", ".join(f"{component.part} ({component.architecture.name})" for component in components)
        raise CheckpointError(
            f"{source.path}: holds {len(found)} networks of kind {architecture} where one is needed; it has {names}"
        )
    return found[0]


def find_components(source: TensorSource) -> list[Component]:
    """All networks that a source holds.

    Raises:
        CheckpointError: if none is known, two stand under one prefix, tensors belong to none, or scales do not fit.
    """
    source = with_scales(source)
    keys = source.keys()
    found: dict[str, tuple[Architecture, Spelling]] = {}
    for architecture, spelling, prefix in _signatures(keys):
        if prefix in found:
            names = [found[prefix][0].name, architecture.name]
            raise CheckpointError(f"{source.path}: holds {' and '.join(names)} side by side under {prefix!r}")
        found[prefix] = architecture, spelling
    if not found:
        known = ", ".join(architecture.name for architecture in architectures())
        raise CheckpointError(
            f"{source.path}: is no network that is known ({known}); its first tensors: {listing(keys)}"
        )
    shares = _shares(keys, sorted(found, key=len, reverse=True))
    strays = [key for key in shares.pop(None, []) if not _is_ignored(key)]
    if strays:
        raise CheckpointError(f"{source.path}: {len(strays)} tensors belong to no network: {listing(strays)}")
    return [_component(source, *found[prefix], prefix, shares[prefix]) for prefix in found]


def _signatures(keys: list[str]) -> Iterator[tuple[Architecture, Spelling, str]]:
    for architecture in architectures():
        for spelling in architecture.spellings:
            for key in keys:
                prefix = key.removesuffix(spelling.signature)
                if prefix == key or (prefix and not prefix.endswith(".")):
                    continue
                if not prefix.endswith(spelling.not_below or "\0"):
                    yield architecture, spelling, prefix


def _shares(keys: list[str], prefixes: list[str]) -> dict[str | None, list[str]]:
    """Keys by the first prefix that they have, None for those that have none."""
    shares: dict[str | None, list[str]] = {}
    for key in keys:
        owner = next((prefix for prefix in prefixes if key.startswith(prefix)), None)
        shares.setdefault(owner, []).append(key)
    return shares


def _is_ignored(key: str) -> bool:
    """Whether a tensor beside all networks is one that some network does not need."""
    names = [name for architecture in architectures() for name in architecture.ignore if "*" not in name]
    return any(key == name or key.endswith(f".{name}") for name in names)


def _component(
    source: TensorSource, architecture: Architecture, spelling: Spelling, prefix: str, keys: list[str]
) -> Component:
    names = spelling.bind(key.removeprefix(prefix) for key in keys)
    origins: dict[str, Origin] = {}
    for key in keys:
        name = key.removeprefix(prefix)
        if any(fnmatchcase(name, pattern) for pattern in architecture.ignore):
            continue
        for target in names.targets(name) or [Target(key)]:
            if target.name in origins:
                other = origins[target.name].key
                raise CheckpointError(f"{source.path}: {other!r} and {key!r} both stand for {target.name}")
            origins[target.name] = Origin(key, target)
    view = View(source, origins)
    return Component(architecture, spelling.name, _part(architecture, prefix, view), prefix, view)


def _part(architecture: Architecture, prefix: str, source: TensorSource) -> str:
    """Both CLIP encoders have one architecture: a prefix tells them apart, or their size."""
    if architecture.part != "clip":
        return architecture.part
    for part, prefixes in _CLIP_PREFIXES.items():
        if any(known in prefix for known in prefixes):
            return part
    widths = [math.prod(source.shape(key)) for key in source if key.endswith("final_layer_norm.weight")]
    return "clip_g" if max(widths, default=0) >= CLIP_G_WIDTH else "clip_l"
