"""Finding a model, and what its configs say before any weight is read."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from edgedit.config import ParallelConfig
from edgedit.pipelines.parts import PartFiles, Parts, find_parts
from edgedit.pipelines.published import PIPELINES, family_of_pipeline
from edgedit.pipelines.request import Limits, Request

# `_class_name` of model_index.json -> module and class of its settings
FAMILIES = {
    "FluxPipeline": ("edgedit.pipelines.flux_settings", "FluxSettings"),
    "StableDiffusion3Pipeline": ("edgedit.pipelines.sd3_settings", "SD3Settings"),
}


class Settings(ABC):
    """What a model says without its weights: enough to refuse a bad request.

    fixed_text_tokens  text tokens besides those that a request may limit
    """

    family: str
    parts: Parts
    limits: Limits
    num_heads: int
    fixed_text_tokens: int = 0

    @classmethod
    @abstractmethod
    def read(cls, parts: Parts) -> Settings:
        """ValueError names a config that is missing, malformed or not supported."""

    @abstractmethod
    def check_parallel(self, config: ParallelConfig) -> None:
        """ValueError for degrees that the model does not take."""

    def main_dtype(self, dtype: str) -> str:
        """The type of most of the transformer's weights when they are loaded as `dtype`, which may be "auto"."""
        if dtype != "auto":
            return dtype
        from edgedit.weights.convert import main_dtype
        from edgedit.weights.sources import open_source

        where = self.parts.networks["transformer"]
        return main_dtype(open_source(where) if isinstance(where, Path) else where.source, dtype)

    def request(self, prompt: Any, negative_prompt: Any = None, **options: Any) -> Request:
        """A checked request; options as in the pipeline's call."""
        return Request.create(self.limits, prompt, negative_prompt, **options)


def read_settings(model: str | Path | None, files: PartFiles | None = None) -> Settings:
    """Settings of a model, from its configs and the shapes of its tensors alone; arguments and errors as `find_parts`.

    Raises ValueError for a model that is not supported.
    """
    parts = find_parts(model, files)
    family = family_of_pipeline(parts.pipeline)
    if family is None:
        raise ValueError(
            f"{parts.title}: pipeline {parts.pipeline!r} is not supported; supported: {', '.join(PIPELINES)}"
        )
    module, settings = FAMILIES[family.pipeline]
    return getattr(importlib.import_module(module), settings).read(parts)
