"""What all pipelines share: loading, closing, and the result of a call."""

from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit import host
from edgedit.config import ParallelConfig
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.progress import Progress
from edgedit.pipelines.settings import Settings, read_settings

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

FAMILIES = {"FluxPipeline": ("edgedit.pipelines.flux", "FluxPipeline")}


@dataclass
class Result:
    """What a call returns.

    images: pictures on world rank 0, None elsewhere; those of one prompt stand together.
    latents: float32 [B, C, h, w] on every rank, before the VAE's scaling and shift are undone.
    timings: seconds of each stage on this rank.
    bytes_sent: per world rank, payload sent to other ranks while denoising.
    schedule_digest: digest of the plan that the transformer ran.
    notes: what the caller should know, such as ranks that had nothing to do.
    """

    images: list[Image] | None
    latents: np.ndarray
    seed: int
    timings: dict[str, float] = field(default_factory=dict)
    bytes_sent: list[int] = field(default_factory=list)
    schedule_digest: str = ""
    notes: list[str] = field(default_factory=list)


class Pipeline(ABC):
    """A text-to-image pipeline. ``Pipeline.from_pretrained`` gives the one of the model's family.

    One process per rank: every rank loads, and calls with the same arguments. A context manager; leaving it
    or ``close()`` closes the parallel context that the pipeline made.
    """

    settings: Settings
    context: ParallelContext

    @staticmethod
    def from_pretrained(
        model: str | Path,
        compute_dtype: str = "f32",
        threads: int | None = None,
        parallel: ParallelConfig | ParallelContext | None = None,
        progress: bool = False,
    ) -> Pipeline:
        """Load a model for this rank.

        Args:
            model: "embedded", or a directory in diffusers layout (with a model_index.json).
            compute_dtype: type of the large weights in memory: f32, f16, bf16, q8_0, q4_0, q4_k, q5_k, q6_k.
            threads: compute threads; default: this host's cores divided by the ranks on it.
            parallel: layout over ranks; None asks the launcher, and means one rank if there is none.
                A context is used and left open; from a config the pipeline makes its own.
            progress: draw progress bars on world rank 0.

        Raises:
            ValueError: a directory or layout that cannot work; before any weight is read.
            CheckpointError: files that are damaged or do not fit the model.
        """
        settings = read_settings(model)
        own = not isinstance(parallel, ParallelContext)
        config = (
            parallel.config
            if isinstance(parallel, ParallelContext)
            else parallel or ParallelConfig.from_env()
        )
        settings.check_parallel(config)
        host.rest_waiting_threads(os.environ)
        context = ParallelContext(config) if own else parallel
        try:
            shown = Progress(progress and context.rank == 0)
            pipeline = _family(settings.family).load(
                settings,
                compute_dtype,
                threads or host.default_threads(config.local_world_size),
                context,
                shown,
            )
        except BaseException:
            if own:
                context.close()
            raise
        pipeline._owns_context = own
        return pipeline

    @classmethod
    @abstractmethod
    def load(
        cls,
        settings: Any,
        compute_dtype: str,
        threads: int,
        context: ParallelContext,
        progress: Progress,
    ) -> Pipeline: ...

    @abstractmethod
    def __call__(self, prompt: Any, negative_prompt: Any = None, **options: Any) -> Result: ...

    def close(self) -> None:
        """Close the parallel context, if this pipeline made it."""
        if self._owns_context:
            self.context.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    _owns_context = False


def _family(name: str) -> type[Pipeline]:
    module, family = FAMILIES[name]
    return getattr(importlib.import_module(module), family)
