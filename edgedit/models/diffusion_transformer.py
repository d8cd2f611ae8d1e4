"""What denoising transformers share: one graph that conditions all steps, one of a step, and their descriptions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from edgedit.config import ParallelConfig, check_head_dim, check_heads, check_supported
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.description import GraphDescription
from edgedit.graph.executor import Executor
from edgedit.graph.schedule import Schedule
from edgedit.models.conditioning import (
    Modulation,
    StepModulations,
    TimeTextEmbedding,
    conditioning_graph,
    timestep_channels,
)
from edgedit.models.model import Model
from edgedit.models.module import Module
from edgedit.models.tensor_parallel import TensorGroup, sharing_notes
from edgedit.models.weight_residency import WeightsAhead, keep_shares
from edgedit.parallel.mesh import WEIGHTS
from edgedit.sequence.choice import strategy_for
from edgedit.sequence.strategy import AttentionStrategy
from edgedit.weights.outline import outline

SUPPORTED_AXES = ("cfg", "dp", "ulysses", "ring", "kv_gather", "tp", "vae", "text_encoder")


@dataclass(frozen=True, slots=True)
class StepShape:
    """What decides the graph of a step: tokens of each stream, whole, and the blocks that are left out.

    watched  True where what every block gives is an output too
    """

    batch: int
    image_tokens: int
    text_tokens: int
    skip_layers: tuple[int, ...] = ()
    watched: bool = False


Observer = Callable[[StepShape, Mapping[str, np.ndarray]], None]


class DiffusionNetwork(Module):
    """A network whose blocks are modulated by a vector of timestep and pooled text."""

    time_text_embed: TimeTextEmbedding

    @abstractmethod
    def modulations(self) -> Iterator[tuple[str, Modulation]]:
        """Every modulation with its checkpoint key, in the order in which their vectors stand side by side."""

    @abstractmethod
    def blocks(self) -> Iterator[tuple[str, Module]]:
        """Every block with its checkpoint key, in the order in which they run."""

    @abstractmethod
    def step(self, b: GraphBuilder, strategy: AttentionStrategy, shape: StepShape) -> None:
        """Build the graph of one step, from inputs to the output "velocity"."""

    def condition(self, b: GraphBuilder, rows: int) -> None:
        """Build the graph of all modulations, see `conditioning_graph`."""
        modulations = list(self.modulations())
        weights = WeightsAhead(b, self, [modulation for _, modulation in modulations])
        conditioning_graph(b, self.time_text_embed, modulations, rows, weights)

    def step_modulations(self, b: GraphBuilder, batch: int) -> StepModulations:
        """The input with the modulations of a step."""
        modulations = [modulation for _, modulation in self.modulations()]
        values = b.input("modulations", (batch, 1, sum(modulation.channels for modulation in modulations)))
        return StepModulations(values, modulations)


class DiffusionTransformer(Model):
    """Predicts the velocity of image tokens. Loaded by `from_pretrained`; called like diffusers' class.

    Its config has `num_attention_heads` and `guidance_embeds`.
    """

    weight_axis = "tp"
    network: DiffusionNetwork
    timestep_range: ClassVar[float]  # timesteps are given from 0 to this
    observer: Observer | None = None  # told of every step, after it ran

    @classmethod
    def check_parallel(cls, config: Any, parallel: ParallelConfig) -> None:
        check_supported(parallel, SUPPORTED_AXES, cls.__name__)
        check_heads(config.num_attention_heads, parallel, cls.__name__)
        check_head_dim(parallel, config.attention_head_dim, cls.__name__)

    @classmethod
    def network_on(cls, config: Any, parallel: ParallelConfig, compute_dtype: str) -> Module:
        network = super().network_on(config, parallel, compute_dtype)
        assert isinstance(network, DiffusionNetwork), f"{cls.__name__} builds {type(network).__name__}"
        readers = [*network.modulations(), *network.blocks()]
        keep_shares(network, readers, TensorGroup.of(parallel, WEIGHTS))
        return network

    def modulations(
        self, timesteps: np.ndarray, pooled_projections: np.ndarray, guidance: np.ndarray | None = None
    ) -> np.ndarray:
        """All that steps take of these arguments, as one product over steps x batch: f32 [steps, B, M].

        timesteps           [steps, B] from 0 to `timestep_range`
        pooled_projections  [B, pooled_projection_dim] pooled CLIP state
        guidance            [B] guidance scale, for models with guidance_embeds

        The vectors of a step do not depend on which others are computed with them; with ggml's own products
        (kernels "ggml") that holds up to the rounding of a sum's order. Raises ValueError for shapes that do not
        fit each other or the model.
        """
        config, batch = self.config, len(pooled_projections)
        if (guidance is not None) != config.guidance_embeds:
            needs = "needs" if config.guidance_embeds else "takes no"
            raise ValueError(f"this model {needs} guidance (guidance_embeds is {config.guidance_embeds})")
        steps, to_thousand = len(timesteps), np.float32(1000 / self.timestep_range)
        inputs = {
            "timestep": np.concatenate(
                [timestep_channels(timestep * to_thousand, batch) for timestep in timesteps]
            ),
            "pooled": np.tile(pooled_projections, (steps, 1)),
        }
        if guidance is not None:
            inputs["guidance"] = np.tile(timestep_channels(guidance * np.float32(1000), batch), (steps, 1))
        vectors = self._condition(steps * batch).run(inputs)
        return np.concatenate(list(vectors.values()), axis=1).reshape(steps, batch, -1)

    def velocity(self, *args: Any, **kwargs: Any) -> np.ndarray:
        """One step, given the `modulations` of it; every rank passes the whole inputs and gets the whole output."""
        raise NotImplementedError

    def prepare(
        self, batch: int, image_tokens: int, text_tokens: int, skip_layers: tuple[int, ...] = ()
    ) -> Schedule:
        """Build, agree on and allocate the graph of a step of these shapes ahead of the first; returns its schedule."""
        return self._step(StepShape(batch, image_tokens, text_tokens, skip_layers)).schedule

    def watched(
        self, shape: StepShape, inputs: Mapping[str, np.ndarray], wire_dtype: str | None = None
    ) -> dict[str, np.ndarray]:
        """Run a step that an observer was told of once more: the "velocity" and what each block gives, f32 [B, S, C].

        The blocks stand in order as "BLOCK.txt" and "BLOCK.img". `wire_dtype` is used instead of the layout's.
        """
        return self._step(replace(shape, watched=True), wire_dtype).run(inputs)

    def _run_step(self, shape: StepShape, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        velocity = self._step(shape).run(inputs)["velocity"]
        if self.observer is not None:
            self.observer(shape, inputs)
        return velocity

    def _step(self, shape: StepShape, wire_dtype: str | None = None) -> Executor:
        parallel = self.context.config
        if wire_dtype is not None:
            parallel = replace(parallel, wire_dtype=wire_dtype)

        def build(b: GraphBuilder) -> None:
            self.network.step(b, strategy_for(parallel, b.compute_dtype), shape)

        return self.executor(("step", shape, wire_dtype), build, degree=parallel.graph_degree)

    def prepare_modulations(self, rows: int) -> Schedule:
        """As `prepare`, of the graph behind `modulations` for steps x batch rows."""
        return self._condition(rows).schedule

    def _condition(self, rows: int) -> Executor:
        parallel = self.context.config
        degree = parallel.tp_degree * parallel.weight_degree
        return self.executor(("modulations", rows), lambda b: self.network.condition(b, rows), degree)

    @classmethod
    def describe(
        cls,
        config: Any,
        *,
        batch: int,
        image_tokens: int,
        text_tokens: int,
        compute_dtype: str,
        parallel: ParallelConfig,
        quantised_compute: str = "exact",
        skip_layers: tuple[int, ...] = (),
    ) -> GraphDescription:
        """The graph of one step on the rank of `parallel`, from shapes alone: no weights are read."""
        shape = StepShape(batch, image_tokens, text_tokens, skip_layers)

        def build(b: GraphBuilder, network: DiffusionNetwork) -> None:
            network.step(b, strategy_for(parallel, b.compute_dtype), shape)

        return cls._description(config, build, compute_dtype, parallel, quantised_compute)

    @classmethod
    def describe_modulations(
        cls,
        config: Any,
        *,
        rows: int,
        compute_dtype: str,
        parallel: ParallelConfig,
        quantised_compute: str = "exact",
    ) -> GraphDescription:
        """The graph behind `modulations` for steps x batch rows, which runs once for a request."""

        def build(b: GraphBuilder, network: DiffusionNetwork) -> None:
            network.condition(b, rows)

        return cls._description(config, build, compute_dtype, parallel, quantised_compute)

    @classmethod
    def _description(
        cls,
        config: Any,
        build: Callable[[GraphBuilder, DiffusionNetwork], None],
        compute_dtype: str,
        parallel: ParallelConfig,
        quantised_compute: str,
    ) -> GraphDescription:
        cls.check_parallel(config, parallel)
        network = cls.network_on(config, parallel, compute_dtype)
        assert isinstance(network, DiffusionNetwork), f"{cls.__name__} builds {type(network).__name__}"
        network.name_scopes()
        b = cls.new_builder(parallel, compute_dtype, quantised_compute)
        try:
            with outline(network, compute_dtype, b.kernels) as weight_nbytes:
                build(b, network)
                return GraphDescription(
                    name=b.name,
                    nodes=tuple(b.nodes),
                    collectives=tuple(b.collectives),
                    outputs=tuple(t.node for t in b.outputs.values() if t.node is not None),
                    input_nbytes=b.leaf_nbytes,
                    weight_nbytes=weight_nbytes,
                    supports_guidance=config.guidance_embeds,
                    fusion_reasons=b.fusion_reasons,
                    notes=sharing_notes(network, compute_dtype),
                )
        finally:
            b.release()
