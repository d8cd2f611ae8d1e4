"""Where the parts of a pipeline are: in a diffusers directory, in one file, or in a file each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit import embedded
from edgedit.pipelines import published
from edgedit.pipelines.fitting import check_class, check_tokenizer, class_of
from edgedit.weights.configs import read_json

if TYPE_CHECKING:
    from edgedit.weights.recognise import Component
    from edgedit.weights.told import ComponentWeights

EMBEDDED = "embedded"
INDEX = "model_index.json"


@dataclass(frozen=True)
class PartFiles:
    """Files that hold parts of a pipeline, in place of a model's or with no other model.

    Each of the networks is a safetensors or GGUF file, in any published spelling, or a diffusers component directory.

    tokenizer_dir  holds tokenizer, tokenizer_2 and, for Stable Diffusion 3 with T5, tokenizer_3
    """

    transformer: str | Path | None = None
    vae: str | Path | None = None
    clip_l: str | Path | None = None
    clip_g: str | Path | None = None
    t5: str | Path | None = None
    tokenizer_dir: str | Path | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, part.name) is not None for part in fields(self))

    def networks(self) -> dict[str, Path]:
        """Paths of the networks that are given."""
        names = [part.name for part in fields(self) if part.name != "tokenizer_dir"]
        return {name: Path(getattr(self, name)) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True)
class Parts:
    """The parts of one pipeline, by the names of its components.

    title       where they are from, for messages
    pipeline    class name as in model_index.json
    classes     class names of the networks that there are
    networks    where each is: a directory with its config.json, or what was found in a file
    tokenizers  directories
    schedule    content of scheduler_config.json, or where that is
    """

    title: str
    pipeline: str
    classes: Mapping[str, str | None]
    networks: Mapping[str, Path | ComponentWeights]
    tokenizers: Mapping[str, Path]
    schedule: Path | Mapping[str, Any] = field(default_factory=dict)

    def config(self, component: str) -> dict[str, Any]:
        """The content of a network's config.json. ValueError names one that is missing or malformed."""
        where = self.networks[component]
        return read_json(where / "config.json") if isinstance(where, Path) else dict(where.config)

    def tokenizer(self, name: str) -> Path:
        """The directory of a tokenizer. ValueError where there is none."""
        if name not in self.tokenizers:
            raise ValueError(f"{self.title}: has no {name}")
        return self.tokenizers[name]

    def scheduler(self) -> dict[str, Any]:
        """The content of scheduler_config.json."""
        return read_json(self.schedule) if isinstance(self.schedule, Path) else dict(self.schedule)

    def check(self, expected: Mapping[str, str]) -> None:
        """Raises ValueError where a network has another class than expected."""
        for component, name in expected.items():
            found = self.classes.get(component)
            if found != name:
                raise ValueError(f"{self.title}: {component} is {found!r}; supported is {name!r}")


def find_parts(model: str | Path | None, files: PartFiles | None = None) -> Parts:
    """The parts of a model, some of them replaced.

    Args:
        model: "embedded", a directory with model_index.json, a file with a whole pipeline or its transformer, or None
            for none but `files`.
        files: parts in files of their own.

    Raises:
        ValueError: where there is no model, or parts are missing or do not fit each other.
        CheckpointError: for files that are damaged or hold something else.
    """
    files = files or PartFiles()
    path = embedded.path() if model == EMBEDDED else None if model is None else Path(model)
    if path is None and not files:
        raise ValueError("no model: give one, or files of its parts")
    if path is not None and not path.is_file():
        base = of_directory(path, str(model))
        return _replaced(base, files) if files else base
    return _assembled(path, files)


def of_directory(directory: Path, name: str | None = None) -> Parts:
    """The parts of a diffusers directory. ValueError where it is none."""
    if not (directory / INDEX).is_file():
        raise ValueError(
            f"model {name or str(directory)!r} is neither {EMBEDDED!r} nor a directory with {INDEX}, nor a file"
        )
    index = read_json(directory / INDEX)
    classes = {
        component: entry[1]
        for component, entry in index.items()
        if isinstance(entry, list) and len(entry) == 2
    }
    present = [component for component, kind in classes.items() if kind is not None]
    return Parts(
        title=str(directory),
        pipeline=str(index.get("_class_name")),
        classes=classes,
        networks={component: directory / component for component in present},
        tokenizers={component: directory / component for component in present},
        schedule=directory / "scheduler" / "scheduler_config.json",
    )


def _replaced(base: Parts, files: PartFiles) -> Parts:
    """The parts of a directory, some of them from files."""
    family = published.family_of_pipeline(base.pipeline)
    if family is None:
        raise ValueError(f"{base.title}: pipeline {base.pipeline!r} takes no parts from files")
    networks, classes = dict(base.networks), dict(base.classes)
    for part, path in files.networks().items():
        component = family.component(part)
        if component is None:
            raise ValueError(f"{base.title}: {family.pipeline} has no {part}, which {path} is given for")
        networks[component] = _network(part, path, family, _hints(base.networks.get(component)))
        classes[component] = family.components[component][1]
    tokenizers = dict(base.tokenizers)
    if files.tokenizer_dir is not None:
        tokenizers |= _tokenizers(family, classes, files.tokenizer_dir)
    return Parts(base.title, base.pipeline, classes, networks, tokenizers, base.schedule)


def _assembled(path: Path | None, files: PartFiles) -> Parts:
    """The parts of one file and those of others."""
    from edgedit.weights.recognise import find_components
    from edgedit.weights.sources import open_source

    title, given = str(path or "the parts given"), files.networks()
    found: dict[str, Component] = {}
    for component in find_components(open_source(path)) if path is not None else []:
        if component.part in found:
            raise ValueError(f"{title}: holds two networks of kind {component.part}")
        found[component.part] = component
    family = _family(path, found, given)
    networks: dict[str, Path | ComponentWeights] = {}
    for name, (part, _) in family.components.items():
        if part in given:
            networks[name] = _network(part, given[part], family, None)
        elif part in found:
            networks[name] = _described(found[part], family, None)
    _check_whole(title, family, networks, given)
    classes = {name: family.components[name][1] for name in networks}
    if files.tokenizer_dir is None:
        names = ", ".join(family.tokenizers_of(classes))
        raise ValueError(f"files hold no tokenizers: give --tokenizer-dir, a directory with {names}")
    tokenizers = _tokenizers(family, classes, files.tokenizer_dir)
    parts = Parts(title, family.pipeline, classes, networks, tokenizers)
    return replace(parts, schedule=family.scheduler(parts.config("transformer")))


def _check_whole(
    title: str, family: published.Family, networks: Mapping[str, Any], given: Mapping[str, Path]
) -> None:
    """Raises ValueError for parts that are missing or that the family does not have."""
    missing = [family.components[name][0] for name in family.needed if name not in networks]
    if missing:
        flags = ", ".join(f"{part} (--{part.replace('_', '-')})" for part in missing)
        raise ValueError(f"{title}: {family.pipeline} needs {flags} too")
    strange = [part for part in given if family.component(part) is None]
    if strange:
        raise ValueError(f"{family.pipeline} has no {', '.join(strange)}")


def _hints(where: Path | ComponentWeights | None) -> dict[str, Any] | None:
    """The config of a part that is replaced, where there is one."""
    config = where / "config.json" if isinstance(where, Path) else None
    return read_json(config) if config is not None and config.is_file() else None


def _family(path: Path | None, found: Mapping[str, Component], given: Mapping[str, Path]) -> published.Family:
    """The family of the transformer."""
    if "transformer" in given:
        kind = _class_name("transformer", given["transformer"])
    elif "transformer" in found:
        kind = found["transformer"].architecture.class_name
    else:
        what = f"{path} holds {', '.join(found)} but no" if path is not None else "there is no model and no"
        raise ValueError(f"{what} transformer; give one with --transformer")
    return published.family_of_transformer(kind)


def _class_name(part: str, path: Path) -> str:
    return class_of(path) if path.is_dir() else _component(part, path).architecture.class_name


def _network(
    part: str, path: Path, family: published.Family, hints: Mapping[str, Any] | None
) -> Path | ComponentWeights:
    """Where a network is that was given by a path."""
    if path.is_dir():
        check_class(part, path, class_of(path), family)
        return path
    component = _component(part, path)
    check_class(part, path, component.architecture.class_name, family)
    return _described(component, family, hints)


def _component(part: str, path: Path) -> Component:
    """The component for a part. Of two CLIP encoders a file with one is whichever it is given for."""
    from edgedit.weights.recognise import find_components
    from edgedit.weights.sources import open_source

    components = find_components(open_source(path))
    named = [component for component in components if component.part == part]
    if not named and part.startswith("clip"):
        named = [component for component in components if component.architecture.part == "clip"]
    if len(named) != 1:
        held = ", ".join(component.part for component in components)
        raise ValueError(f"{path} is given for {part}, but holds {held}")
    return replace(named[0], part=part)


def _described(
    component: Component, family: published.Family, hints: Mapping[str, Any] | None
) -> ComponentWeights:
    from edgedit.weights.told import ComponentWeights, config_of

    config = config_of(component, hints)
    return ComponentWeights(family.defaults.get(component.part, {}) | config, component.source)


def _tokenizers(
    family: published.Family, classes: Mapping[str, str | None], directory: str | Path
) -> dict[str, Path]:
    names = family.tokenizers_of(classes)
    absent = [name for name in names if not (Path(directory) / name).is_dir()]
    if absent:
        raise ValueError(f"{directory} holds no {', '.join(absent)}; a tokenizer directory has {', '.join(names)}")
    found = {name: Path(directory) / name for name in names}
    for name, path in found.items():
        check_tokenizer(path, str(classes[family.tokenizers[name]]))
    return found
