"""The steps that make latents of noise: guidance branches, solver, and what a picture to begin with keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from edgedit.pipelines.branches import Branches
from edgedit.pipelines.encoded_text import Text
from edgedit.pipelines.image_encoding import EncodedImage
from edgedit.pipelines.modulations_ahead import ModulationsAhead
from edgedit.pipelines.request import Request
from edgedit.sampling.guidance import away_from_skipped, combine, rescaled
from edgedit.sampling.solvers import euler_step

if TYPE_CHECKING:
    from edgedit.pipelines.pipeline import Callback
    from edgedit.pipelines.text_to_image import TextToImage

GUIDED_BRANCHES = 2  # the first ones; a third leaves layers out


def skip_layers_of(request: Request, branch: int) -> tuple[int, ...]:
    """Layers that a branch leaves out."""
    if branch < GUIDED_BRANCHES:
        return ()
    assert request.skip_layer_guidance is not None
    return request.skip_layer_guidance.layers


@dataclass
class Denoising:
    """What all parts of a batch have in common.

    texts   every prompt that this rank needs, encoded
    image   what the request's picture has become
    hashes  a line of the latents after each step, of all parts that have run
    """

    pipeline: TextToImage
    branches: Branches
    texts: Mapping[str, Text]
    image: EncodedImage | None
    callback: Callback | None
    hashes: list[str] = field(default_factory=list)

    def run(self, part: Request) -> np.ndarray:
        """Final latents of a part, bit-identical on all ranks of a replica."""
        pipeline, image, noise = self.pipeline, self.image, part.latents
        assert noise is not None, "a part starts from its noise"
        sigmas = self._sigmas(part)
        num_steps = len(sigmas) - 1
        latents = noise if image is None else image.first_latents(noise, sigmas[0])
        velocity_of = self._transformer(part, sigmas)
        guidance = part.skip_layer_guidance
        for step in pipeline.progress.over(range(num_steps), "steps", num_steps):
            pipeline.context.note(step=step + 1, phase="denoising")
            skips = guidance is not None and guidance.is_active(step, num_steps)

            def predict(branch: int, step: int = step, latents: np.ndarray = latents) -> np.ndarray:
                return velocity_of(branch, step, latents)

            predictions = self.branches.predict(
                predict,
                label=f"prediction of step {step + 1}",
                active=self.branches.count if skips else min(self.branches.count, GUIDED_BRANCHES),
                shape=noise.shape,
            )
            latents = euler_step(latents, guided(part, predictions), sigmas[step], sigmas[step + 1])
            if image is not None:
                latents = image.kept(latents, noise, sigmas[step + 1])
            self.hashes.append(f"step {step + 1}: {hashlib.sha256(latents.tobytes()).hexdigest()}")
            if self.callback is not None:
                self.callback(step, num_steps, latents)
        return latents

    def _sigmas(self, part: Request) -> np.ndarray:
        """Noise levels of the steps that run."""
        tokens = self.pipeline.settings.limits.image_tokens(part.height, part.width)
        sigmas = self.pipeline.sigmas(part.num_inference_steps, tokens)
        return sigmas if part.image is None else sigmas[part.image.first_step(part.num_inference_steps) :]

    def _transformer(self, part: Request, sigmas: np.ndarray) -> Callable[[int, int, np.ndarray], np.ndarray]:
        """(branch, step, latents) -> velocity, for the branches of this rank."""
        pipeline, transformer = self.pipeline, self.pipeline.transformer
        # as the transformer takes them
        timesteps = pipeline.settings.schedule.timesteps(sigmas) / np.float32(
            1000 / transformer.timestep_range
        )
        of_batch = np.repeat(timesteps[:, None], part.batch, axis=1)
        prompts = {text_of(branch): part.branches[branch] for branch in self.branches.own}
        texts = {which: Text.of([self.texts[prompt] for prompt in own]) for which, own in prompts.items()}
        modulations = {
            which: ModulationsAhead(transformer, of_batch, text.pooled, pipeline.guidance(part))
            for which, text in texts.items()
        }

        def velocity_of(branch: int, step: int, latents: np.ndarray) -> np.ndarray:
            text, modulation = texts[text_of(branch)], modulations[text_of(branch)].of(step)
            return pipeline.velocity(latents, text, modulation, skip_layers_of(part, branch), self.image)

        return velocity_of


def text_of(branch: int) -> int:
    """The branch whose text a branch reads: a third one has that of the second.

    What the prompts are does not matter, so that replicas run the same passes.
    """
    return min(branch, GUIDED_BRANCHES - 1)


def guided(request: Request, predictions: Sequence[np.ndarray]) -> np.ndarray:
    """The velocity that the predictions of the branches make together."""
    if len(predictions) == 1:
        return predictions[0]
    velocity = combine(predictions[0], predictions[1], request.true_cfg_scale)
    if len(predictions) > GUIDED_BRANCHES:
        assert request.skip_layer_guidance is not None, "a third branch leaves layers out"
        velocity = away_from_skipped(
            velocity, predictions[1], predictions[2], request.skip_layer_guidance.scale
        )
    if request.guidance_rescale:
        velocity = rescaled(velocity, predictions[1], request.guidance_rescale)
    return velocity
