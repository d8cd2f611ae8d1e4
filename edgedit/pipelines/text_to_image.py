"""From a checked request to pictures, for every family: text, noise, guidance branches, solver, autoencoder.

Ranks share the transformer's work; text encoders and solver run on every rank alike, the VAE on world rank 0. A family
says how prompts are encoded and how its transformer is called.
"""

from __future__ import annotations

import hashlib
import secrets
import time
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError
from edgedit.graph.schedule import Schedule
from edgedit.models.autoencoder_kl import AutoencoderKL
from edgedit.models.diffusion_transformer import DiffusionTransformer
from edgedit.models.model import Model
from edgedit.models.tokenizers import Tokenizer
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.branches import Branches, idle_cfg_ranks
from edgedit.pipelines.images import to_pil
from edgedit.pipelines.modulations_ahead import ModulationsAhead
from edgedit.pipelines.pipeline import Callback, Pipeline, Result
from edgedit.pipelines.progress import Progress
from edgedit.pipelines.prompt_cache import PromptCache
from edgedit.pipelines.request import Request
from edgedit.pipelines.text_to_image_settings import AXES, TextToImageSettings
from edgedit.sampling.guidance import away_from_skipped, combine
from edgedit.sampling.noise import randn
from edgedit.sampling.solvers import euler_step

GUIDED_BRANCHES = 2  # the first ones; a third leaves layers out


@dataclass(frozen=True)
class Text:
    """Encoded prompts: sequence [B, T, C], pooled [B, P]."""

    sequence: np.ndarray
    pooled: np.ndarray


class TextToImage(Pipeline):
    """The parts are models and tokenizers by the names that they have as attributes; a VAE is on world rank 0 only."""

    settings: TextToImageSettings
    transformer: DiffusionTransformer
    vae: AutoencoderKL | None

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
    def encode(self, prompt: str, length: int) -> Text:
        """One prompt: B = 1, with `length` tokens for T5. Warns of what is cut."""

    @abstractmethod
    def velocity(
        self, latents: np.ndarray, text: Text, modulations: np.ndarray, skip_layers: tuple[int, ...]
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
    ) -> Pipeline:
        context.note(phase="loading weights")
        # what every rank computes alike, it computes alone, as all of them agreed to
        alone = ParallelConfig(ops=context.config.ops, kernels=context.config.kernels)
        classes, tokenizers = cls.components(settings)
        parts: dict[str, Any] = {"vae": None}
        for component, model in classes.items():
            if component == "vae" and context.rank != 0:
                continue
            with progress.nbytes(component) as advance:
                parts[component] = model.from_pretrained(
                    settings.directory / component,
                    compute_dtype=compute_dtype,
                    threads=threads,
                    parallel=context if component == "transformer" else alone,
                    progress=advance,
                    quantised_compute=quantised_compute,
                )
        for name in tokenizers:
            parts[name] = Tokenizer.from_dir(settings.directory / name)
        return cls(settings, context, progress, parts)

    @property
    def models(self) -> list[Model]:
        parts = [getattr(self, name) for name in self._parts]
        return [part for part in parts if isinstance(part, Model)]

    def run(self, request: Request, callback: Callback | None = None) -> Result:
        request = self._agreed(request)
        branches = Branches(self.context, len(request.branches))
        start = time.perf_counter()
        own = dict.fromkeys(request.branches[branch] for branch in branches.own)
        texts = {prompts: self._encode(request, prompts) for prompts in own}
        encoded = time.perf_counter()
        schedule = self._plan(request, branches)
        sent_before, times_before = self._bytes_sent(), replace(self.context.times)
        latents = self._denoise(request, branches, texts, callback)
        sent, times = self._bytes_sent() - sent_before, self.context.times.since(times_before)
        denoised = time.perf_counter()
        images = self._decode(latents)
        timings = {
            "text_encoding_s": encoded - start,
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
            schedule.digest,
            self._notes(len(request.branches)),
        )

    def _agreed(self, request: Request) -> Request:
        """The same request on every rank, with a seed."""
        self.context.note(phase="comparing the request")
        transformer = self.transformer
        model = [
            f"dtype = {transformer.compute_dtype}",
            f"quantised_compute = {transformer.quantised_compute}",
            *self.settings.lines(),
        ]
        self.context.agree("request", [*request.lines(), *model])
        if request.seed is None:
            request = request.with_seed(self.context.broadcast_object(secrets.randbits(32)))
        return request

    def close(self) -> None:
        self.encoded.clear()
        super().close()

    def _encode(self, request: Request, prompts: tuple[str, ...]) -> Text:
        """The prompts of one branch, each as often as pictures are drawn of it."""
        self.context.note(phase="encoding text")
        texts = []
        for (
            prompt
        ) in prompts:  # alone: what it becomes does not depend on the others, nor on what was drawn before
            with warnings.catch_warnings():
                if self.context.rank != 0:
                    warnings.simplefilter("ignore")
                texts.append(self.encode(prompt, request.max_sequence_length))
        sequence, pooled = (
            np.concatenate([getattr(text, name) for text in texts]) for name in ("sequence", "pooled")
        )
        repeats = request.num_images_per_prompt
        return Text(np.repeat(sequence, repeats, axis=0), np.repeat(pooled, repeats, axis=0))

    def _plan(self, request: Request, branches: Branches) -> Schedule:
        """The transformer's schedules, compared between the ranks before the first step; the first of them."""
        self.context.note(phase="planning")
        text_tokens = self.settings.fixed_text_tokens + request.max_sequence_length
        schedules = [
            self.transformer.prepare(request.batch, self._image_tokens(request), text_tokens, skip_layers)
            for skip_layers in dict.fromkeys(_skip_layers(request, branch) for branch in branches.own)
        ]
        return schedules[0]

    def _image_tokens(self, request: Request) -> int:
        _, _, height, width = self.settings.limits.latent_shape(request.batch, request.height, request.width)
        return (height // 2) * (width // 2)

    def _denoise(
        self,
        request: Request,
        branches: Branches,
        texts: Mapping[tuple[str, ...], Text],
        callback: Callback | None,
    ) -> np.ndarray:
        """Final latents, float32 [B, C, h, w], bit-identical on all ranks."""
        num_steps = request.num_inference_steps
        shape = self.settings.limits.latent_shape(request.batch, request.height, request.width)
        assert request.seed is not None, "an agreed request has a seed"
        latents = (
            randn(shape, request.seed) if request.latents is None else request.latents.astype(np.float32)
        )
        sigmas = self.sigmas(num_steps, self._image_tokens(request))
        # as the transformer takes them
        timesteps = self.settings.schedule.timesteps(sigmas) / np.float32(
            1000 / self.transformer.timestep_range
        )
        of_batch = np.repeat(timesteps[:, None], request.batch, axis=1)
        modulations = {
            prompts: ModulationsAhead(self.transformer, of_batch, text.pooled, self.guidance(request))
            for prompts, text in texts.items()
        }
        skipping = request.skip_layer_guidance
        hashes = []

        for step in self.progress.over(range(num_steps), "steps", num_steps):
            self.context.note(step=step + 1, phase="denoising")

            def predict(branch: int, step: int = step, latents: np.ndarray = latents) -> np.ndarray:
                prompts = request.branches[branch]
                skip_layers = _skip_layers(request, branch)
                return self.velocity(latents, texts[prompts], modulations[prompts].of(step), skip_layers)

            does_skip = skipping is not None and skipping.is_active(step, num_steps)
            predictions = branches.predict(
                predict,
                label=f"prediction of step {step + 1}",
                active=branches.count if does_skip else min(branches.count, GUIDED_BRANCHES),
                shape=shape,
            )
            velocity = predictions[0]
            if len(predictions) > 1:
                velocity = combine(predictions[0], predictions[1], request.true_cfg_scale)
            if does_skip:
                assert skipping is not None
                velocity = away_from_skipped(velocity, predictions[1], predictions[2], skipping.scale)
            latents = euler_step(latents, velocity, sigmas[step], sigmas[step + 1])
            hashes.append(f"step {step + 1}: {hashlib.sha256(latents.tobytes()).hexdigest()}")
            if callback is not None:
                callback(step, num_steps, latents)

        self.context.note(phase="comparing the latents")
        self.context.agree("latents", hashes)
        if not np.isfinite(latents).all():
            raise EdgeditError("the final latents hold values that are not finite")
        return latents

    def _decode(self, latents: np.ndarray) -> list[Any] | None:
        """Pictures on world rank 0; a failure there ends every rank alike."""
        self.context.note(phase="decoding")
        images, failure = None, None
        if self.vae is not None:
            settings = self.settings
            scaled = latents / np.float32(settings.scaling_factor) + np.float32(settings.shift_factor)
            decoded = [self.vae.decode(scaled[i : i + 1]) for i in self._decode_order(len(scaled))]
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
        return sum(self.context.group(axis).bytes_sent for axis in AXES)

    def _on_every_rank(self, number: int) -> list[int]:
        gathered = np.empty(self.context.world_size, np.int64)
        world = self.context.group("world")
        world.all_gather(Buffer.of(np.array([number], np.int64)), Buffer.of(gathered), label="bytes sent")
        return gathered.tolist()

    def _notes(self, branches: int) -> list[str]:
        idle = idle_cfg_ranks(self.context, branches)
        if not idle:
            return []
        have = "one guidance branch" if branches == 1 else f"{branches} guidance branches"
        needs = self.settings.limits.needs_for_guidance
        hint = f"; a second one needs {needs} above 1" if branches == 1 else ""
        ranks = ", ".join(map(str, idle))
        return [
            f"cfg {self.context.config.cfg_degree}: the request has {have}, ranks {ranks} repeat others{hint}"
        ]


def _skip_layers(request: Request, branch: int) -> tuple[int, ...]:
    """Layers that a branch leaves out."""
    if branch < GUIDED_BRANCHES:
        return ()
    assert request.skip_layer_guidance is not None
    return request.skip_layer_guidance.layers
