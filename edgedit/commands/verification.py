"""What ``edgedit verify`` runs: a request on the layout of a context, then the same alone on world rank 0.

What the layout computes stays where it is until world rank 0 comes to the same place and compares, so that no rank ever
holds two models, nor all blocks of all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedit.commands.difference import Difference, psnr_db
from edgedit.config import ParallelConfig
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.context import ParallelContext
from edgedit.parallel.split import array_split
from edgedit.pipelines.text_to_image import TextToImage

if TYPE_CHECKING:
    from edgedit.models.diffusion_transformer import StepShape
    from edgedit.pipelines.request import Request

OpenPipeline = Callable[[ParallelContext], TextToImage]


@dataclass(frozen=True)
class BlockDifference:
    """Of what one block gave for one stream ("txt", "img"), or of the "velocity", in one guidance branch."""

    branch: int
    block: str
    stream: str
    difference: Difference


@dataclass(frozen=True)
class Findings:
    """How the layout differs from one rank.

    steps    of the latents after each step
    blocks   of one step, in the order in which they run
    wire     what the wire's type alone does to the velocity of that step, at most, of any branch and replica; None
             where it is the type that rounds nothing
    psnr_db  of the pictures, infinite for equal ones
    notes    on the request in the layout, such as ranks that repeat others
    """

    steps: tuple[Difference, ...]
    blocks: tuple[BlockDifference, ...]
    wire: Difference | None
    psnr_db: float
    notes: tuple[str, ...] = ()

    def first_beyond(self, tolerance: float) -> BlockDifference | None:
        """The first block whose difference is not within the tolerance."""
        return next((block for block in self.blocks if not block.difference.is_within(tolerance)), None)

    def is_within(self, tolerance: float) -> bool:
        differences = [*self.steps, *(block.difference for block in self.blocks)]
        return all(difference.is_within(tolerance) for difference in differences)


class _Record:
    """Of one run of a pipeline: latents after each step, and what `on_pass` keeps of the passes of one step."""

    def __init__(
        self, pipeline: TextToImage, step: int, on_pass: Callable[[StepShape, Mapping[str, Any]], None]
    ) -> None:
        self.latents: list[np.ndarray] = []
        self.notes: tuple[str, ...] = ()
        self._pipeline, self._step, self._on_pass = pipeline, step, on_pass

    def run(self, request: Request) -> Any:
        """The pictures on the rank that has them, else None."""
        self._pipeline.transformer.observer = self._observe
        result = self._pipeline.run(request, self._after_step)
        self.notes = tuple(result.notes)
        return result.images

    def _observe(self, shape: StepShape, inputs: Mapping[str, np.ndarray]) -> None:
        if len(self.latents) == self._step:
            self._on_pass(shape, inputs)

    def _after_step(self, step: int, num_steps: int, latents: np.ndarray) -> None:
        self.latents.append(latents.copy())


class Verification:
    """All ranks of a context make it with the same arguments and call `run` together.

    open_pipeline  loads the model for a context
    step           number of the step, from 0, whose blocks are compared
    """

    def __init__(
        self, context: ParallelContext, open_pipeline: OpenPipeline, request: Request, step: int = 0
    ) -> None:
        self._num_steps = request.num_inference_steps
        if request.image is not None:
            self._num_steps -= request.image.first_step(request.num_inference_steps)
        assert 0 <= step < self._num_steps, f"step {step} of {self._num_steps}"
        self._context = context
        self._open = open_pipeline
        self._request = request
        self._step = step
        self._shares = array_split(request.batch, context.config.dp_degree)
        self._passes: list[dict[str, np.ndarray]] = []  # of this rank's branches in the layout
        self._wire: Difference | None = None
        self._notes: tuple[str, ...] = ()

    def run(self) -> Findings | None:
        """The findings on world rank 0, None elsewhere."""
        latents, images = self._on_layout()
        if self._context.rank == 0:
            return self._alone(latents, images)
        self._hand_over(latents)
        return None

    def _on_layout(self) -> tuple[list[np.ndarray], Any]:
        pipeline = self._open(self._context)
        transformer, config = pipeline.transformer, self._context.config
        wire, exact = (
            c.wire_dtype_for(transformer.compute_dtype) for c in (config, replace(config, wire_dtype="auto"))
        )
        place = self._context.coords
        holds = all(place[axis] == 0 for axis in ("tp", "ulysses", "ring", "kv_gather"))

        def on_pass(shape: StepShape, inputs: Mapping[str, np.ndarray]) -> None:
            outputs = transformer.watched(shape, inputs)
            if wire != exact:
                unrounded = transformer.watched(shape, inputs, exact)["velocity"]
                rounding = Difference.of(outputs["velocity"], unrounded)
                self._wire = rounding if self._wire is None else self._wire.worse_of(rounding)
            if holds:
                self._passes.append(outputs)

        record = _Record(pipeline, self._step, on_pass)
        images = record.run(self._request)
        _close(pipeline)
        self._notes = record.notes
        self._wire = self._worst_of_ranks(self._wire)
        return record.latents, images

    def _worst_of_ranks(self, own: Difference | None) -> Difference | None:
        told = json.dumps(None if own is None else asdict(own)).encode()
        exchanged = self._context.group("world").exchange(told, label="what the wire rounds")
        known = [Difference(**values) for values in map(json.loads, exchanged) if values is not None]
        return reduce(Difference.worse_of, known) if known else None

    def _alone(self, of_layout: list[np.ndarray], pictures: Any) -> Findings:
        """Run on this rank only, and compare with what the others hand over."""
        self._context.note(phase="running alone")
        config = self._context.config
        alone = ParallelContext(ParallelConfig(ops=config.ops, kernels=config.kernels))
        pipeline = self._open(alone)
        blocks: list[BlockDifference] = []
        branch = 0

        def on_pass(shape: StepShape, inputs: Mapping[str, np.ndarray]) -> None:
            nonlocal branch
            for name, reference in pipeline.transformer.watched(shape, inputs).items():
                block, _, stream = name.rpartition(".") if name != "velocity" else (name, "", "img")
                of_ranks = np.concatenate(list(self._blocks_of(branch, name, reference)))
                blocks.append(BlockDifference(branch, block, stream, Difference.of(of_ranks, reference)))
            branch += 1

        record = _Record(pipeline, self._step, on_pass)
        reference_pictures = record.run(self._request)
        stacks = [self._latents_of(replica, of_layout) for replica in range(len(self._shares))]
        steps = [
            Difference.of(ours, reference)
            for ours, reference in zip(np.concatenate(stacks, axis=1), record.latents, strict=True)
        ]
        _close(pipeline)
        alone.close()
        psnr = psnr_db(pictures, reference_pictures)
        return Findings(tuple(steps), tuple(blocks), self._wire, psnr, self._notes)

    # From the ranks of the layout to world rank 0, in the order in which it asks for them

    def _blocks_of(self, branch: int, name: str, reference: np.ndarray) -> list[np.ndarray]:
        """An output of the layout for each replica, as world rank 0 asks for it."""
        mesh, degree = self._context.mesh, self._context.config.cfg_degree
        parts = []
        for replica, share in enumerate(self._shares):
            source = mesh.rank_at({"dp": replica, "cfg": branch % degree})
            if source == 0:
                parts.append(self._passes[branch // degree].pop(name))
            else:
                parts.append(self._receive((share, *reference.shape[1:]), source, name))
        return parts

    def _latents_of(self, replica: int, own: list[np.ndarray]) -> np.ndarray:
        """[steps, share, C, h, w] of a replica."""
        source = self._context.mesh.rank_at({"dp": replica})
        if source == 0:
            return np.stack(own)
        return self._receive((self._num_steps, self._shares[replica], *own[0].shape[1:]), source, "latents")

    def _hand_over(self, latents: list[np.ndarray]) -> None:
        """What world rank 0 asks of this rank; most have nothing."""
        place, degree = self._context.coords, self._context.config.cfg_degree
        self._context.note(phase="being compared")
        branches = range(place["cfg"], len(self._request.branches), degree)
        if branches:  # cfg ranks beyond the branches repeat what others hand over
            for outputs in self._passes:
                for name, values in outputs.items():
                    self._send(values, name)
        if self._shares[place["dp"]] and not any(place[axis] for axis in place if axis != "dp"):
            self._send(np.stack(latents), "latents")

    def _send(self, values: np.ndarray, label: str) -> None:
        self._context.group("world").send(Buffer.of(np.ascontiguousarray(values)), 0, label=label)

    def _receive(self, shape: tuple[int, ...], source: int, label: str) -> np.ndarray:
        received = np.empty(shape, np.float32)
        if received.size:
            self._context.group("world").recv(Buffer.of(received), source, label=label)
        return received


def _close(pipeline: TextToImage) -> None:
    """Free the models; a context that the pipeline was given stays open."""
    for model in pipeline.models:
        model.close()
    pipeline.close()
