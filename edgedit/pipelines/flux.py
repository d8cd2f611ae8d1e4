"""FLUX.1: CLIP and T5 read the prompt, a rectified-flow transformer denoises, a VAE paints.

The mathematics is that of ``FluxPipeline`` in diffusers. Ranks share the transformer's work; text encoders
and solver run on every rank alike, the VAE on world rank 0.
"""

from __future__ import annotations

import hashlib
import secrets
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError
from edgedit.graph.schedule import Schedule
from edgedit.models.autoencoder_kl import AutoencoderKL
from edgedit.models.clip import CLIPTextModel
from edgedit.models.flux import FluxTransformer
from edgedit.models.model import Model
from edgedit.models.patches import patchify, unpatchify
from edgedit.models.t5 import T5EncoderModel
from edgedit.models.tokenizers import Tokenizer
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.branches import Branches, idle_cfg_ranks
from edgedit.pipelines.flux_modulations import ModulationsAhead
from edgedit.pipelines.flux_settings import AXES, FluxSettings
from edgedit.pipelines.images import to_pil
from edgedit.pipelines.latents import image_ids
from edgedit.pipelines.pipeline import Callback, Pipeline, Result
from edgedit.pipelines.progress import Progress
from edgedit.pipelines.prompt_cache import PromptCache
from edgedit.pipelines.request import Request
from edgedit.sampling.guidance import combine
from edgedit.sampling.noise import randn
from edgedit.sampling.solvers import euler_step


@dataclass(frozen=True)
class _Text:
    """Encoded prompts: sequence [B, T, C], pooled [B, P]."""

    sequence: np.ndarray
    pooled: np.ndarray


class FluxPipeline(Pipeline):
    """Draws pictures with a FLUX.1 model; made by ``Pipeline.from_pretrained``."""

    def __init__(
        self,
        settings: FluxSettings,
        context: ParallelContext,
        progress: Progress,
        tokenizer: Tokenizer,
        tokenizer_2: Tokenizer,
        text_encoder: CLIPTextModel,
        text_encoder_2: T5EncoderModel,
        transformer: FluxTransformer,
        vae: AutoencoderKL | None,
    ) -> None:
        self.settings: FluxSettings = settings
        self.context = context
        self.progress = progress
        self.tokenizer, self.tokenizer_2 = tokenizer, tokenizer_2
        self.text_encoder, self.text_encoder_2 = text_encoder, text_encoder_2
        self.transformer = transformer
        self.vae = vae  # on world rank 0 only
        self.encoded: PromptCache[_Text] = PromptCache()

    @classmethod
    def load(
        cls,
        settings: FluxSettings,
        compute_dtype: str,
        threads: int,
        context: ParallelContext,
        progress: Progress,
        quantised_compute: str,
    ) -> FluxPipeline:
        context.note(phase="loading weights")
        # what every rank computes alike, it computes alone, as all of them agreed to
        alone = ParallelConfig(ops=context.config.ops, kernels=context.config.kernels)
        classes: dict[str, Any] = {
            "text_encoder": CLIPTextModel,
            "text_encoder_2": T5EncoderModel,
            "transformer": FluxTransformer,
            "vae": AutoencoderKL,
        }
        if context.rank != 0:
            del classes["vae"]
        models: dict[str, Any] = {"vae": None}
        for component, model in classes.items():
            with progress.nbytes(component) as advance:
                models[component] = model.from_pretrained(
                    settings.directory / component,
                    compute_dtype=compute_dtype,
                    threads=threads,
                    parallel=context if component == "transformer" else alone,
                    progress=advance,
                    quantised_compute=quantised_compute,
                )
        for name in ("tokenizer", "tokenizer_2"):
            models[name] = Tokenizer.from_dir(settings.directory / name)
        return cls(settings, context, progress, **models)

    @property
    def models(self) -> list[Model]:
        models = [self.text_encoder, self.text_encoder_2, self.transformer]
        return models if self.vae is None else [*models, self.vae]

    def run(self, request: Request, callback: Callback | None = None) -> Result:
        request = self._agreed(request)
        branches = Branches(self.context, len(request.branches))
        start = time.perf_counter()
        texts = {branch: self._encode(request, request.branches[branch]) for branch in branches.own}
        encoded = time.perf_counter()
        schedule = self._plan(request)
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

    def _encode(self, request: Request, prompts: tuple[str, ...]) -> _Text:
        """The prompts of one branch, each as often as pictures are drawn of it."""
        self.context.note(phase="encoding text")
        length, repeats = request.max_sequence_length, request.num_images_per_prompt
        texts = [self._encode_one(prompt, length) for prompt in prompts]
        sequence, pooled = (
            np.concatenate([getattr(text, name) for text in texts]) for name in ("sequence", "pooled")
        )
        return _Text(np.repeat(sequence, repeats, axis=0), np.repeat(pooled, repeats, axis=0))

    def _encode_one(self, prompt: str, length: int) -> _Text:
        """One prompt, alone: what it becomes does not depend on the others, nor on what was drawn before."""
        with warnings.catch_warnings():  # that it is cut is said each time, also of a prompt that is kept
            if self.context.rank != 0:
                warnings.simplefilter("ignore")
            clip_ids, _ = self.tokenizer.encode([prompt])
            t5_ids, _ = self.tokenizer_2.encode([prompt], length)
        clip, t5 = self.text_encoder, self.text_encoder_2
        return self.encoded.get((prompt, length, clip, t5), lambda: _Text(t5(t5_ids), clip(clip_ids)[1]))

    def _plan(self, request: Request) -> Schedule:
        """The transformer's schedule, compared between the ranks before the first step."""
        self.context.note(phase="planning")
        _, _, height, width = self.settings.limits.latent_shape(request.batch, request.height, request.width)
        image_tokens = (height // 2) * (width // 2)
        return self.transformer.prepare(request.batch, image_tokens, request.max_sequence_length)

    def _denoise(
        self, request: Request, branches: Branches, texts: dict[int, _Text], callback: Callback | None
    ) -> np.ndarray:
        """Final latents, float32 [B, C, h, w], bit-identical on all ranks."""
        schedule, num_steps = self.settings.schedule, request.num_inference_steps
        shape = self.settings.limits.latent_shape(request.batch, request.height, request.width)
        batch, _, height, width = shape
        assert request.seed is not None, "an agreed request has a seed"
        noise = randn(shape, request.seed) if request.latents is None else request.latents.astype(np.float32)
        tokens = patchify(noise)
        positions = image_ids(height, width)
        sigmas = schedule.sigmas(num_steps, tokens.shape[1])
        # the transformer of diffusers takes the timestep divided by 1000 and multiplies again
        timesteps = schedule.timesteps(sigmas) / np.float32(1000.0)
        guidance = (
            np.full(batch, request.guidance_scale, np.float32) if self.settings.guidance_embeds else None
        )
        of_batch = np.repeat(timesteps[:, None], batch, axis=1)
        modulations = {
            branch: ModulationsAhead(self.transformer, of_batch, text.pooled, guidance)
            for branch, text in texts.items()
        }
        hashes = []

        for step in self.progress.over(range(num_steps), "steps", num_steps):
            self.context.note(step=step + 1, phase="denoising")

            def predict(branch: int, step: int = step, tokens: np.ndarray = tokens) -> np.ndarray:
                sequence = texts[branch].sequence
                return self.transformer.velocity(
                    hidden_states=tokens,
                    encoder_hidden_states=sequence,
                    modulations=modulations[branch].of(step),
                    img_ids=positions,
                    txt_ids=np.zeros((sequence.shape[1], 3), np.float32),
                )

            predictions = branches.predict(predict, label=f"prediction of step {step + 1}")
            velocity = predictions[0]
            if len(predictions) == 2:
                velocity = combine(predictions[0], predictions[1], request.true_cfg_scale)
            tokens = euler_step(tokens, velocity, sigmas[step], sigmas[step + 1])
            hashes.append(f"step {step + 1}: {hashlib.sha256(tokens.tobytes()).hexdigest()}")
            if callback is not None:
                callback(step, num_steps, unpatchify(tokens, height, width))

        self.context.note(phase="comparing the latents")
        self.context.agree("latents", hashes)
        if not np.isfinite(tokens).all():
            raise EdgeditError("the final latents hold values that are not finite")
        return unpatchify(tokens, height, width)

    def _decode(self, latents: np.ndarray) -> list[Any] | None:
        """Pictures on world rank 0; a failure there ends every rank alike."""
        self.context.note(phase="decoding")
        images, failure = None, None
        if self.vae is not None:
            scaled = latents / np.float32(self.settings.scaling_factor) + np.float32(
                self.settings.shift_factor
            )
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
        hint = "; a second one needs a negative prompt and true_cfg_scale above 1" if branches == 1 else ""
        ranks = ", ".join(map(str, idle))
        return [
            f"cfg {self.context.config.cfg_degree}: the request has {have}, ranks {ranks} repeat others{hint}"
        ]
