"""What ``edgedit bench`` times: a transformer and the tokens of one step, known before any weight is read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit.commands import plan_subject
from edgedit.config import ParallelConfig
from edgedit.pipelines.parts import EMBEDDED
from edgedit.pipelines.request import Request
from edgedit.pipelines.settings import read_settings

if TYPE_CHECKING:
    from edgedit.models.diffusion_transformer import DiffusionTransformer
    from edgedit.parallel.context import ParallelContext

RANDOM_SIZES = ("mini", "wide", "long", "tiny")
# What a random model has of its own.
_SHAPE_OPTIONS = ("width", "height", "max_sequence_length")


@dataclass(frozen=True)
class Subject:
    """A transformer, and how many tokens it gets: rows x columns of the image and those of the text, per picture."""

    name: str
    network: type[DiffusionTransformer]
    config: Any
    rows: int
    columns: int
    text_tokens: int
    batch: int
    load: Callable[[ParallelContext], DiffusionTransformer]

    @property
    def image_tokens(self) -> int:
        return self.rows * self.columns

    def check_parallel(self, parallel: ParallelConfig) -> None:
        """ValueError for a layout that the transformer does not take."""
        self.network.check_parallel(self.config, parallel)

    def request(self) -> dict[str, Any]:
        """Random arguments of the transformer, the same on every rank."""
        from edgedit.models import random_flux, random_sd3
        from edgedit.models.sd3 import SD3Config

        module: Any = random_sd3 if isinstance(self.config, SD3Config) else random_flux
        return module.request_of(self.config, self.rows, self.columns, self.text_tokens, self.batch)


def find_subject(args: argparse.Namespace) -> Subject:
    """The subject of a command line. ValueError for a model or shape that cannot work."""
    if args.random is None:
        return _of_model(args)
    given = [f"--{name.replace('_', '-')}" for name in _SHAPE_OPTIONS if getattr(args, name) is not None]
    if args.model != EMBEDDED:
        given.append("--model")
    if given:
        raise ValueError(f"--random {args.random} states the shape of the step, but {given[0]} is given too")
    if args.num_images < 1:
        raise ValueError(f"--num-images is {args.num_images}; at least 1 is needed")
    return _of_random(args)


def _of_model(args: argparse.Namespace) -> Subject:
    where, found = _found(args.model)
    request = Request.create(
        found.limits,
        "benchmark",
        height=args.height,
        width=args.width,
        num_images_per_prompt=args.num_images,
        max_sequence_length=args.max_sequence_length,
    )
    batch, _, height, width = found.limits.latent_shape(request.batch, request.height, request.width)

    def load(context: ParallelContext) -> DiffusionTransformer:
        model: DiffusionTransformer = found.network.from_pretrained(
            where, args.dtype, args.threads, context, quantised_compute=args.quantised_compute
        )
        return model

    text_tokens = found.fixed_text_tokens + request.max_sequence_length
    return Subject(args.model, found.network, found.config, height // 2, width // 2, text_tokens, batch, load)


def _found(model: str) -> tuple[Any, plan_subject.Subject]:
    """Where the transformer of a model is, and what its pipeline allows."""
    from edgedit.models.architectures import transformer_class

    if model != EMBEDDED and Path(model).is_file():
        return Path(model), plan_subject.find_subject(model)
    settings = read_settings(model)
    content = settings.parts.config("transformer")
    network = transformer_class(content)
    config = network.config_class.from_dict(content)
    of_pipeline = plan_subject.Subject(model, network, config, settings.limits, settings.fixed_text_tokens)
    return settings.parts.networks["transformer"], of_pipeline


def _of_random(args: argparse.Namespace) -> Subject:
    from edgedit.models.flux import FluxTransformer
    from edgedit.models.random_flux import SIZES, random_transformer

    size = SIZES[args.random]

    def load(context: ParallelContext) -> DiffusionTransformer:
        return random_transformer(args.random, args.dtype, args.threads, context, args.quantised_compute)

    name = f"random {args.random}"
    return Subject(
        name, FluxTransformer, size.config, size.rows, size.columns, size.text_tokens, args.num_images, load
    )
