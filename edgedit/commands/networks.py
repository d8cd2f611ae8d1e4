"""The networks at a path: of a pipeline's directory, of a component's, or of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit.errors import CheckpointError
from edgedit.pipelines.parts import INDEX
from edgedit.weights.configs import read_json

if TYPE_CHECKING:
    from edgedit.models.model import Model
    from edgedit.weights.matching import Match
    from edgedit.weights.recognise import Component
    from edgedit.weights.sources import TensorSource

PROJECTION = "text_projection.weight"


@dataclass(frozen=True)
class Network:
    """A network that was found, of which no tensor is read.

    name    of the component's directory, or of the part of a file: transformer, vae, clip_l, clip_g, t5
    kind    architecture, such as "flux"
    config  content of config.json
    source  its tensors, under the names of diffusers or transformers
    match   which of them stand for which parameter
    """

    name: str
    kind: str
    model: type[Model]
    config: Mapping[str, Any]
    source: TensorSource
    match: Match


def networks_at(path: Path) -> list[Network]:
    """All networks at a path. Raises CheckpointError for what is damaged or not known, ValueError for bad configs."""
    from edgedit.weights.recognise import find_components
    from edgedit.weights.sources import open_source

    if (path / INDEX).is_file():
        folders = [
            path / name for name, entry in read_json(path / INDEX).items() if _is_network(path, name, entry)
        ]
        return [_named(networks_at(folder), folder) for folder in folders]
    return [network_of(component) for component in find_components(open_source(path))]


def network_of(component: Component) -> Network:
    """A component with the model that it is for. Raises as `networks_at`."""
    from edgedit.models.architectures import network_class
    from edgedit.weights.matching import match
    from edgedit.weights.told import config_of

    config, source = config_of(component), component.source
    name = component.architecture.class_name
    if component.architecture.name == "clip":
        name = "CLIPTextModelWithProjection" if PROJECTION in source else "CLIPTextModel"
    model = network_class(name)
    network = model.build_network(model.config_class.from_dict(config))
    shapes = {parameter_name: parameter.shape for parameter_name, parameter in network.named_parameters()}
    found = match(shapes, source, model.parameter_name, model.ignored_keys)
    return Network(
        component.part, component.architecture.name, model, {**config, "_class_name": name}, source, found
    )


def _is_network(path: Path, name: str, entry: Any) -> bool:
    is_part = isinstance(entry, list) and len(entry) == 2 and entry[1] is not None
    return is_part and (path / name / "config.json").is_file()


def _named(networks: list[Network], folder: Path) -> Network:
    if len(networks) != 1:
        raise CheckpointError(f"{folder}: holds {len(networks)} networks where one is needed")
    (network,) = networks
    return Network(folder.name, network.kind, network.model, network.config, network.source, network.match)
