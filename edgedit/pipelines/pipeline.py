"""What all pipelines share: loading, closing, and the result of a call."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit import host
from edgedit.config import ParallelConfig
from edgedit.parallel.context import ParallelContext
from edgedit.pipelines.image_options import ImageOptions
from edgedit.pipelines.loras import Given, Loras
from edgedit.pipelines.parts import PartFiles
from edgedit.pipelines.progress import Progress
from edgedit.pipelines.request import Request
from edgedit.pipelines.settings import Settings, read_settings

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from edgedit.models.model import Model
    from edgedit.parallel.timeline import Timeline

Callback = Callable[[int, int, "np.ndarray"], None]
FAMILIES = {
    "FluxPipeline": ("edgedit.pipelines.flux", "FluxPipeline"),
    "StableDiffusion3Pipeline": ("edgedit.pipelines.sd3", "SD3Pipeline"),
}


@dataclass
class Result:
    """What a call returns.

    images: pictures on world rank 0, None elsewhere; those of one prompt stand together.
    latents: float32 [B, C, h, w] on every rank, before the VAE's scaling and shift are undone.
    timings: seconds of each stage on this rank; of those of denoising, what was compute, what moving bytes between
        ranks (exchange) and what waiting for other ranks (wait).
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
        model: str | Path | None,
        compute_dtype: str = "auto",
        threads: int | None = None,
        parallel: ParallelConfig | ParallelContext | None = None,
        progress: bool = False,
        quantised_compute: str = "exact",
        loras: Sequence[Given] = (),
        lora_mode: str = "merge",
        parts: PartFiles | None = None,
    ) -> Pipeline:
        """Load a model for this rank.

        Args:
            model: "embedded", a directory in diffusers layout (with a model_index.json), or a safetensors or GGUF file
                with a transformer and maybe more; None where `parts` has everything.
            compute_dtype: type of the large weights in memory: f32, f16, bf16, q8_0, q4_0, q4_k, q5_k, q6_k; or auto,
                which is as stored for GGUF and f32 for others.
            threads: compute threads; default: this host's cores divided by the ranks on it.
            parallel: layout over ranks; None asks the launcher, and means one rank if there is none.
                A context is used and left open; from a config the pipeline makes its own.
            progress: draw progress bars on world rank 0.
            quantised_compute: "int8" to multiply quantised weights as integers, which rounds activations too.
            loras: LoRA files, each a path or a pair of a path and a weight; what they add is summed.
            lora_mode: "merge" adds it to the weights, "apart" keeps it beside them, in f32.

            parts: files of single networks, which come in place of the model's, and a directory of tokenizers.

        Raises:
            ValueError: a directory or layout that cannot work; before any weight is read.
            CheckpointError: files that are damaged or do not fit the model.
        """
        settings = read_settings(model, parts)
        adapters = Loras.of(loras, lora_mode)
        given = parallel if isinstance(parallel, ParallelContext) else None
        if isinstance(parallel, ParallelContext):
            config = parallel.config
        else:
            config = parallel or ParallelConfig.from_env()
        settings.check_parallel(config)
        context = given or ParallelContext(config)
        try:
            shown = Progress(progress and context.rank == 0)
            pipeline = _family(settings.family).load(
                settings,
                compute_dtype,
                threads or host.default_threads(config.local_world_size),
                context,
                shown,
                quantised_compute,
                adapters,
            )
        except BaseException:
            if given is None:
                context.close()
            raise
        pipeline._owns_context = given is None
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
        quantised_compute: str,
        loras: Loras,
    ) -> Pipeline: ...

    def __call__(
        self,
        prompt: str | Sequence[str],
        negative_prompt: str | Sequence[str] | None = None,
        *,
        num_inference_steps: int = 28,
        guidance_scale: float | None = None,
        true_cfg_scale: float | None = None,
        height: int | None = None,
        width: int | None = None,
        num_images_per_prompt: int = 1,
        max_sequence_length: int | None = None,
        seed: int | None = None,
        latents: np.ndarray | None = None,
        image: str | Path | Image | None = None,
        mask_image: str | Path | Image | None = None,
        strength: float | None = None,
        resize_image: bool = True,
        image_as: str | None = None,
        skip_guidance_layers: Sequence[int] | None = None,
        skip_layer_guidance_scale: float = 2.8,
        skip_layer_guidance_start: float = 0.01,
        skip_layer_guidance_stop: float = 0.2,
        batch_size: int | None = None,
        guidance_rescale: float = 0.0,
        vae_tile: int | None = None,
        callback: Callback | None = None,
    ) -> Result:
        """Draw ``num_images_per_prompt`` pictures of each prompt.

        Args:
            prompt, negative_prompt: texts; one negative prompt serves all prompts.
            num_inference_steps: denoising steps.
            guidance_scale: FLUX: the guidance input of guidance-distilled models, which others ignore (default 3.5,
                FLUX.1-Fill 30).
                Stable Diffusion 3: above 1, classifier-free guidance against the negative prompt, which is empty
                unless given (default 7).
            true_cfg_scale: FLUX: above 1 and with a negative prompt, classifier-free guidance,
                uncond + scale * (cond - uncond), which doubles the work of a step.
            height, width: in pixels; default: the size the model was made for.
            max_sequence_length: text tokens for T5, at most 512; default: for FLUX its tokenizer's limit, for Stable
                Diffusion 3 256.
            seed: of the starting noise; None draws one, the same on all ranks.
            latents: starting noise [B, C, h, w] instead of a drawn one.
            image: a picture or its file, which world rank 0 reads for all ranks. Most models denoise it, stretched to
                height x width, from where noise covers some of it; FLUX.1-Kontext reads it as a reference.
            mask_image: of the image's size; where it is white the picture is painted anew, where it is black it stays.
                FLUX.1-Fill needs one.
            strength: fraction of the steps that run, above 0 and at most 1: how much noise covers the image at first
                (default 0.6, FLUX.1-Fill 1).
            resize_image: FLUX.1-Kontext: give the image the trained size of the nearest aspect ratio, not its own.
            image_as: "reference" for a FLUX.1-Kontext model whose files do not tell that it is one; "start" to denoise
                the image with a model that would read it.
            skip_guidance_layers: Stable Diffusion 3: layers that a third branch leaves out; the picture is guided away
                from its prediction.
            skip_layer_guidance_scale, skip_layer_guidance_start, skip_layer_guidance_stop: of that guidance; it acts
                in steps between start and stop, fractions of all steps.
            batch_size: most pictures denoised at once; a replica (dp) draws its share of the batch in as many rounds
                as that takes. Default: all at once. Memory grows with it; the pictures stay the same.
            guidance_rescale: with guidance between branches, how far (0 to 1) the guided prediction is brought to the
                standard deviation of the conditional one, against too much contrast at large scales.
            vae_tile: side in pixels of the tiles in which pictures are decoded, for less memory and more time; default:
                whole pictures.
            callback: called on every rank after each step with (step, num_inference_steps, latents), of the pictures
                that the rank's replica denoises then.

        Raises:
            ValueError: an argument that cannot work, before anything runs.
            EdgeditError: ranks that disagree or fail, or a picture that is not finite or constant.
        """
        options = ImageOptions(image, mask_image, strength, resize_image, image_as)
        limits = self.settings.limits
        options.check(limits, num_inference_steps)
        request = self.settings.request(
            prompt,
            negative_prompt,
            num_inference_steps=num_inference_steps,
            guidance_scale=guidance_scale,
            true_cfg_scale=true_cfg_scale,
            height=height,
            width=width,
            num_images_per_prompt=num_images_per_prompt,
            max_sequence_length=max_sequence_length,
            seed=seed,
            latents=latents,
            skip_guidance_layers=skip_guidance_layers,
            skip_layer_guidance_scale=skip_layer_guidance_scale,
            skip_layer_guidance_start=skip_layer_guidance_start,
            skip_layer_guidance_stop=skip_layer_guidance_stop,
            batch_size=batch_size,
            guidance_rescale=guidance_rescale,
            vae_tile=vae_tile,
        )
        request, problem = options.added_to(request, limits, self.context)
        if problem is not None:
            raise ValueError(problem)
        return self.run(request, callback)

    @abstractmethod
    def run(self, request: Request, callback: Callback | None = None) -> Result:
        """As a call, for a request that ``settings.request`` has checked."""

    @property
    @abstractmethod
    def models(self) -> list[Model]:
        """The networks of this rank."""

    def profile(self, timeline: Timeline | None) -> None:
        """Keep in `timeline` what runs from now on, node by node; None ends that. Results stay the same."""
        self.context.timeline = timeline
        for model in self.models:
            model.context.timeline = timeline

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
