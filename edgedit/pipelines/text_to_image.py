"""From a checked request to pictures, for every family: text, noise, guidance branches, solver, autoencoder.

Ranks share the transformer's work; the solver runs on every rank alike, text encoders on all or on the first, the VAE
on the first ranks together. A family says how prompts are encoded and how its transformer is called.
"""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError
from edgedit.graph.schedule import Schedule
from edgedit.models.autoencoder_kl import AutoencoderKL
from edgedit.models.diffusion_transformer import DiffusionTransformer
from edgedit.models.model import Model
from edgedit.models.tokenizers import Tokenizer
from edgedit.parallel.arrays import gathered
from edgedit.parallel.context import ParallelContext
from edgedit.parallel.mesh import WEIGHTS
from edgedit.pipelines.branches import Branches, check_lockstep, idle_notes
from edgedit.pipelines.denoising import Denoising, skip_layers_of
from edgedit.pipelines.encoded_text import Text, broadcast_texts
from edgedit.pipelines.image_encoding import EncodedImage, begin
from edgedit.pipelines.image_inputs import check_options, image_notes
from edgedit.pipelines.images import to_pil
from edgedit.pipelines.loras import Loras
from edgedit.pipelines.pipeline import Callback, Pipeline, Result
from edgedit.pipelines.progress import Progress
from edgedit.pipelines.prompt_cache import PromptCache
from edgedit.pipelines.replicas import Replicas
from edgedit.pipelines.request import Request
from edgedit.pipelines.text_to_image_settings import AXES, TextToImageSettings


class TextToImage(Pipeline):
    """Its parts are models and tokenizers, by the names of its attributes; a VAE is on the first ranks only."""

    settings: TextToImageSettings
    transformer: DiffusionTransformer
    vae: AutoencoderKL | None
    loras = Loras()

    def __init__(
        self,
        settings: TextToImageSettings,
        context: ParallelContext,
        progress: Progress,
        parts: Mapping[str, Any],
    ) -> None:
        self.settings = settings
        self.context = context
        self.progress = progress
        self.encoded: PromptCache[Text] = PromptCache()
        self._parts = tuple(parts)
        for name, part in parts.items():
            setattr(self, name, part)

    @classmethod
    @abstractmethod
    def components(cls, settings: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Classes of the networks, transformer and vae among them, and names of the tokenizers."""

    @abstractmethod
    def tokenize(self, prompt: str, length: int) -> tuple[np.ndarray | None, ...]:
        """Ids [1, T] for each text encoder, None for one that is absent; T5 gets `length`. Warns of what is cut."""

    @abstractmethod
    def encode(self, prompt: str, length: int) -> Text:
        """One prompt: B = 1, with `length` tokens for T5. Warns of what is cut."""

    @abstractmethod
    def velocity(
        self,
        latents: np.ndarray,
        text: Text,
        modulations: np.ndarray,
        skip_layers: tuple[int, ...],
        image: EncodedImage | None,
    ) -> np.ndarray:
        """The transformer's prediction for latents [B, C, h, w], of the same shape."""

    def sigmas(self, num_steps: int, image_tokens: int) -> np.ndarray:
        """Noise levels, num_steps + 1 of them."""
        return self.settings.schedule.sigmas(num_steps, image_tokens)

    def guidance(self, request: Request) -> np.ndarray | None:
        """[B] for a transformer that takes the scale as an input."""
        return None

    @classmethod
    def load(
        cls,
        settings: Any,
        compute_dtype: str,
        threads: int,
        context: ParallelContext,
        progress: Progress,
        quantised_compute: str,
        loras: Loras,
    ) -> Pipeline:
        context.note(phase="loading weights")
        # what every rank computes alike, it computes alone, as all of them agreed to
        alone = ParallelConfig(ops=context.config.ops, kernels=context.config.kernels)
        classes, tokenizers = cls.components(settings)
        shared = ["transformer", *(["vae"] if context.config.vae_degree > 1 else [])]
        if context.config.text_encoder_degree > 1:
            shared += [name for name, model in classes.items() if model.weight_axis == "text_encoder"]
        deltas = loras.deltas(settings.family, settings.parts.networks, classes)
        parts: dict[str, Any] = {"vae": None}
        for component, model in classes.items():
            if component == "vae" and context.rank >= context.config.vae_degree:
                continue
            if component.startswith("text_encoder") and not context.config.encodes_text:
                parts[component] = None
                continue
            with progress.nbytes(component) as advance:
                parts[component] = model.from_pretrained(
                    settings.parts.networks[component],
                    compute_dtype=compute_dtype,
                    threads=threads,
                    parallel=context if component in shared else alone,
                    progress=advance,
                    quantised_compute=quantised_compute,
                    deltas=deltas.get(component),
                    lora_mode=loras.mode,
                )
        for name in tokenizers:
            parts[name] = Tokenizer.from_dir(settings.parts.tokenizer(name), warns=context.rank == 0)
        pipeline = cls(settings, context, progress, parts)
        pipeline.loras = loras
        return pipeline

    @property
    def models(self) -> list[Model]:
        parts = [getattr(self, name) for name in self._parts]
        return [part for part in parts if isinstance(part, Model)]

    def run(self, request: Request, callback: Callback | None = None) -> Result:
        check_lockstep(self.context.config, request)
        if request.image is None:
            check_options(self.settings.limits.image_uses, request.num_inference_steps, has_image=False)
        request = self._agreed(request)
        branches = Branches(self.context, len(request.branches))
        replicas = Replicas(self.context, request.batch)
        start = time.perf_counter()
        noise, image = begin(self.context, self.vae, self.settings, request)
        parts = [request.part(pictures, noise) for pictures in replicas.rounds(request.batch_size)]
        begun = time.perf_counter()
        texts = self._texts(request, parts, branches)
        encoded = time.perf_counter()
        schedules = [schedule for part in parts for schedule in self._plan(part, branches)]
        sent_before, times_before = self._bytes_sent(), replace(self.context.times)
        latents = self._draw(replicas, parts, Denoising(self, branches, texts, image, callback), noise[:0])
        sent, times = self._bytes_sent() - sent_before, self.context.times.since(times_before)
        denoised = time.perf_counter()
        images = self._decode(latents, request.vae_tile)
        timings = {
            **({} if image is None else {"image_encoding_s": begun - start}),
            "text_encoding_s": encoded - begun,
            "denoising_s": denoised - encoded,
            "decoding_s": time.perf_counter() - denoised,
            **asdict(times),
        }
        assert request.seed is not None, "an agreed request has a seed"
        return Result(
            images,
            latents,
            request.seed,
            timings,
            self._on_every_rank(sent),
            schedules[0].digest if schedules else "",
            [
                *idle_notes(
                    self.context.mesh, len(request.branches), self.settings.limits.needs_for_guidance
                ),
                *replicas.notes(),
                *image_notes(request.image),
                *(note for model in self.models for note in model.notes),
            ],
        )

    def _agreed(self, request: Request) -> Request:
        """The same request on every rank, with a seed."""
        self.context.note(phase="comparing the request")
        transformer = self.transformer
        model = [
            f"dtype = {transformer.compute_dtype}",
            f"quantised_compute = {transformer.quantised_compute}",
            *self.settings.lines(),
            *self.loras.lines(),
        ]
        self.context.agree("request", [*request.lines(), *model])
        if request.seed is None:
            request = request.with_seed(self.context.broadcast_object(secrets.randbits(32)))
        return request

    def close(self) -> None:
        self.encoded.clear()
        super().close()

    def _texts(self, request: Request, parts: Sequence[Request], branches: Branches) -> dict[str, Text]:
        """Every prompt that this rank needs, encoded alone: what it becomes does not depend on the others, nor on what
        was drawn before."""
        self.context.note(phase="encoding text")
        own = dict.fromkeys(p for part in parts for branch in branches.own for p in part.branches[branch])
        every = dict.fromkeys(prompt for branch in request.branches for prompt in branch)
        if self.context.config.sends_text:
            every_text = self._encoded(request, every) if self.context.config.encodes_text else {}
            return broadcast_texts(self.context, every_text, list(every))
        if self.context.rank == 0:  # says what is cut, also of what others encode
            for prompt in [prompt for prompt in every if prompt not in own]:
                self.tokenize(prompt, request.max_sequence_length)
        return self._encoded(request, own)

    def _encoded(self, request: Request, prompts: Iterable[str]) -> dict[str, Text]:
        return {prompt: self.encode(prompt, request.max_sequence_length) for prompt in prompts}

    def _plan(self, request: Request, branches: Branches) -> list[Schedule]:
        """The transformer's schedules, compared between the ranks before the first step."""
        self.context.note(phase="planning")
        text_tokens = self.settings.fixed_text_tokens + request.max_sequence_length
        return [
            self.transformer.prepare(
                request.batch, request.tokens_read(self.settings.limits), text_tokens, skip_layers
            )
            for skip_layers in dict.fromkeys(skip_layers_of(request, branch) for branch in branches.own)
        ]

    def _draw(
        self, replicas: Replicas, parts: Sequence[Request], denoising: Denoising, none: np.ndarray
    ) -> np.ndarray:
        """Final latents of the whole batch, float32 [B, C, h, w], bit-identical on all ranks; `none` are those of a
        replica without a part, [0, C, h, w]."""
        drawn = [none, *(denoising.run(part) for part in parts)]
        self.context.note(phase="comparing the latents")
        self.context.agree("latents", replicas.gather_lines(denoising.hashes, "hashes of latents"))
        latents = replicas.gather(np.concatenate(drawn), "final latents")
        if not np.isfinite(latents).all():
            raise EdgeditError("the final latents hold values that are not finite")
        return latents

    def _decode(self, latents: np.ndarray, tile: int | None) -> list[Any] | None:
        """Pictures on world rank 0; a failure there ends every rank alike."""
        self.context.note(phase="decoding")
        images, failure = None, None
        if self.vae is not None:
            settings = self.settings
            scaled = latents / np.float32(settings.scaling_factor) + np.float32(settings.shift_factor)
            decoded = [self.vae.decode(scaled[i : i + 1], tile) for i in self._decode_order(len(scaled))]
            if self.context.rank == 0:
                try:
                    images = to_pil(np.concatenate(decoded))
                except EdgeditError as error:
                    failure = str(error)
        failure = self.context.broadcast_object(failure)
        if failure is not None:
            raise EdgeditError(failure)
        return images

    def _decode_order(self, count: int) -> Iterator[int]:
        return self.progress.over(range(count), "decode", count)

    def _bytes_sent(self) -> int:
        """Of the axes that steps exchange over; replicas only meet when all steps are done."""
        axes = (*(axis for axis in AXES if axis != "dp"), WEIGHTS)
        return sum(self.context.group(axis).bytes_sent for axis in axes)

    def _on_every_rank(self, number: int) -> list[int]:
        world = self.context.group("world")
        return gathered(world, np.array([number], np.int64), [1] * world.size, "bytes sent").tolist()
