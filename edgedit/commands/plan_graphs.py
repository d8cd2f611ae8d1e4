"""The graphs of all ranks of a layout, described and planned without weights."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from edgedit import kernels
from edgedit.commands.plan_subject import Subject
from edgedit.config import ParallelConfig
from edgedit.graph.forecast import RankForecast
from edgedit.parallel.mesh import WEIGHTS, Mesh
from edgedit.parallel.split import array_split


class Graphs:
    """Describes and plans the graph of each rank that runs `batch` pictures, once for all ranks with equal shards."""

    def __init__(
        self,
        subject: Subject,
        batch: int,
        image_tokens: int,
        text_tokens: int,
        dtype: str,
        quantised_compute: str,
        options: dict[str, Any],
        steps_at_once: int,
    ) -> None:
        self.network, self.config = subject.network, subject.config
        self.shape = {"batch": batch, "image_tokens": image_tokens, "text_tokens": text_tokens}
        self.dtype = dtype
        self.quantised_compute = quantised_compute
        self.options = options
        self.parallel = ParallelConfig.for_plan(**options)
        self.mesh = Mesh(self.parallel)
        self.steps_at_once = steps_at_once
        self.known: dict[Hashable, RankForecast] = {}
        self.ahead: dict[
            tuple[int, ...], RankForecast
        ] = {}  # by the shares of weights, which alone decide it
        # of weights, by place on the tp axis and among the ranks that keep shares
        self.shares: dict[tuple[int, int], tuple[int, ...]] = {}

    def rank(self, rank: int, skip_layers: tuple[int, ...] = ()) -> RankForecast:
        degrees, place = self.mesh.degrees, self.mesh.coords(rank)
        weights = self._shares_of_weights(rank, (place["tp"], self.mesh.group_of(WEIGHTS, rank).index(rank)))
        heads = array_split(self.config.num_attention_heads, degrees["tp"])[place["tp"]]
        chunks = self._chunks()
        shared = (*chunks[place["ring"] + place["kv_gather"]], heads)
        *tokens, heads = (array_split(whole, degrees["ulysses"])[place["ulysses"]] for whole in shared)
        # the chunks that pass by in a ring, the own one first
        hops = tuple(chunks[(place["ring"] - hop) % degrees["ring"]] for hop in range(degrees["ring"]))
        # what a rank adds up of the sums over tp: they are of either stream, or of both together
        rows = (self.shape["batch"] * count * self.config.dim for count in (*tokens, sum(tokens)))
        sums = (array_split(count, degrees["tp"])[place["tp"]] for count in rows)
        shard = (*shared, *tokens, heads, *sums, *weights, hops, skip_layers)
        if shard not in self.known:
            graph = self.network.describe(
                self.config,
                **self.shape,
                compute_dtype=self.dtype,
                parallel=ParallelConfig.for_plan(**self.options, rank=rank),
                quantised_compute=self.quantised_compute,
                skip_layers=skip_layers,
            )
            degree = self.parallel.graph_degree
            self.known[shard] = RankForecast.of(graph, degree, self._modulations(rank, weights))
        return self.known[shard]

    def _chunks(self) -> list[tuple[int, int]]:
        """Image and text tokens of each place on the axis that shares tokens first."""
        degree = self.mesh.degrees["ring"] * self.mesh.degrees["kv_gather"]
        streams = self.shape["image_tokens"], self.shape["text_tokens"]
        images, texts = (array_split(whole, degree) for whole in streams)
        return list(zip(images, texts, strict=True))

    def _shares_of_weights(self, rank: int, place: tuple[int, int]) -> tuple[int, ...]:
        """Channels that a rank has of each weight that is shared, and bytes that it keeps of each block."""
        from edgedit.weights.outline import outline

        if place not in self.shares:
            parallel = ParallelConfig.for_plan(**self.options, rank=rank)
            network = self.network.network_on(self.config, parallel, self.dtype)
            channels = tuple(p.part.length for _, p in network.named_parameters() if p.part is not None)
            with outline(network, self.dtype, kernels.chosen(parallel.kernels)):
                layouts = [block.layout for block in network.weight_blocks.values()]
                self.shares[place] = (*channels, *(layout.count for layout in layouts if layout))
        return self.shares[place]

    def _modulations(self, rank: int, weights: tuple[int, ...]) -> RankForecast:
        """What a rank computes of timesteps, guidance and pooled text, for so many steps at once."""
        if weights not in self.ahead:
            graph = self.network.describe_modulations(
                self.config,
                rows=self.steps_at_once * self.shape["batch"],
                compute_dtype=self.dtype,
                parallel=ParallelConfig.for_plan(**self.options, rank=rank),
                quantised_compute=self.quantised_compute,
            )
            degree = self.parallel.tp_degree * self.parallel.weight_degree
            self.ahead[weights] = RankForecast.of(graph, degree)
        return self.ahead[weights]
