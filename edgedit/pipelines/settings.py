"""Finding a model, and what its configs say before any weight is read."""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from edgedit import embedded
from edgedit.config import ParallelConfig
from edgedit.pipelines.request import Limits, Request

EMBEDDED = "embedded"
# `_class_name` of model_index.json -> module and class of its settings
FAMILIES = {
    "FluxPipeline": ("edgedit.pipelines.flux_settings", "FluxSettings"),
    "StableDiffusion3Pipeline": ("edgedit.pipelines.sd3_settings", "SD3Settings"),
}
# Other names for a family's parts: pipelines that begin with a picture.
FAMILY_OF = {
    "FluxFillPipeline": "FluxPipeline",
    "FluxImg2ImgPipeline": "FluxPipeline",
    "FluxInpaintPipeline": "FluxPipeline",
    "FluxKontextPipeline": "FluxPipeline",
    "StableDiffusion3Img2ImgPipeline": "StableDiffusion3Pipeline",
    "StableDiffusion3InpaintPipeline": "StableDiffusion3Pipeline",
}
PIPELINES = (*FAMILIES, *FAMILY_OF)


class Settings(ABC):
    """What a model directory says without its weights: enough to refuse a bad request.

    fixed_text_tokens  text tokens besides those that a request may limit
    """

    family: str
    directory: Path
    limits: Limits
    num_heads: int
    fixed_text_tokens: int = 0

    @classmethod
    @abstractmethod
    def read(cls, directory: Path) -> Settings:
        """ValueError names a config that is missing, malformed or not supported."""

    @abstractmethod
    def check_parallel(self, config: ParallelConfig) -> None:
        """ValueError for degrees that the model does not take."""

    def request(self, prompt: Any, negative_prompt: Any = None, **options: Any) -> Request:
        """A checked request; options as in the pipeline's call."""
        return Request.create(self.limits, prompt, negative_prompt, **options)


def model_directory(model: str | Path) -> Path:
    """The directory of a model's name or path. ValueError where there is no pipeline."""
    directory = embedded.path() if model == EMBEDDED else Path(model)
    if not (directory / "model_index.json").is_file():
        raise ValueError(
            f"model {str(model)!r} is neither {EMBEDDED!r} nor a directory with model_index.json"
        )
    return directory


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. ValueError names a file that is missing or is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object")
    return content


def read_settings(model: str | Path) -> Settings:
    """Settings of a model, from its configs alone. ValueError for a model that is not supported."""
    directory = model_directory(model)
    name = str(read_json(directory / "model_index.json").get("_class_name"))
    family = FAMILY_OF.get(name, name)
    if family not in FAMILIES:
        raise ValueError(f"{directory}: pipeline {name!r} is not supported; supported: {', '.join(PIPELINES)}")
    module, settings = FAMILIES[family]
    return getattr(importlib.import_module(module), settings).read(directory)
