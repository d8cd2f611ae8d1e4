"""Joint attention on ranks that are threads, whatever shares the tokens, and what it should give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from graph_runner import random

from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.executor import Executor
from edgedit.parallel.context import ParallelContext
from edgedit.sequence.choice import strategy_for
from edgedit.sequence.strategy import AttentionStrategy, Stream

HEAD_DIM = 8


class Problem:
    """Whole streams of random q, k and v, the same on every rank.

    replicated  which streams every rank holds; change = (stream, token) alters one token's q, k and v
    """

    def __init__(
        self,
        lengths: Sequence[int],
        heads: int = 4,
        batch: int = 1,
        replicated: Sequence[int] = (),
        change: tuple[int, int] | None = None,
    ) -> None:
        self.lengths, self.heads, self.batch = tuple(lengths), heads, batch
        self.replicated = set(replicated)
        self.whole = [
            [random(batch, n, heads, HEAD_DIM, seed=10 * i + plane) for plane in range(3)]
            for i, n in enumerate(lengths)
        ]
        if change:
            for plane in self.whole[change[0]]:
                plane[:, change[1]] += 1

    def expected(self, mask: np.ndarray | float = 0.0) -> list[np.ndarray]:
        """In double precision, [B, S_i, C] each; 0 where no key is left."""
        q, k, v = (
            np.concatenate([planes[plane] for planes in self.whole], 1).astype(np.float64).swapaxes(1, 2)
            for plane in range(3)
        )
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(HEAD_DIM) + mask
        highest = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
        total = weights.sum(-1, keepdims=True)
        out = (weights / np.where(total == 0, 1, total)) @ v
        joint = out.swapaxes(1, 2).reshape(self.batch, sum(self.lengths), -1)
        return np.split(joint, np.cumsum(self.lengths)[:-1], axis=1)

    def run(
        self,
        degrees: dict[str, int],
        mask: np.ndarray | None = None,
        mode: str = "uneven",
        poison: float = 0.0,
        wire_dtype: str = "auto",
        **choices: str,
    ) -> list[np.ndarray]:
        """Each stream's whole output as all ranks see it alike; `poison` fills the padding of pad mode."""
        ranks = self.run_ranks(degrees, mask, mode, poison, wire_dtype, **choices)
        for outputs in ranks[1:]:
            for index, (mine, first) in enumerate(zip(outputs, ranks[0], strict=True)):
                if index not in self.replicated:
                    np.testing.assert_array_equal(mine, first)
        return ranks[0]

    def run_ranks(self, degrees, mask=None, mode="uneven", poison=0.0, wire_dtype="auto", **choices):
        size = int(np.prod(list(degrees.values())))

        def run(context):
            b, _, values = self.graph(context, mask, mode, poison, **choices)
            executor = Executor(b, CpuBackend(1), context, degree=size)
            result = executor.run(values)
            return [result[f"out{index}"] for index in range(len(self.lengths))]

        options = {f"{axis}_degree": degree for axis, degree in degrees.items()}
        return ParallelContext.local(size, run, wire_dtype=wire_dtype, **options)

    def graph(self, context, mask=None, mode="uneven", poison=0.0, **choices):
        """A rank's graph, its strategy, and the values of its inputs."""
        b = GraphBuilder("attention", **choices)
        strategy = strategy_for(context.config, "f32", mode)
        streams, values = [], {}
        for index, (planes, length) in enumerate(zip(self.whole, self.lengths, strict=True)):
            shares = []
            for name, plane in zip("qkv", planes, strict=True):
                share = plane if index in self.replicated else slots_of(plane, strategy, poison)
                values[f"{name}{index}"] = share
                shares.append(b.input(f"{name}{index}", share.shape))
            streams.append(Stream(*shares, length, replicated=index in self.replicated))
        whole = None
        if mask is not None:
            whole = b.input("mask", mask.shape)
            values["mask"] = mask
        outputs = strategy.attention(b, streams, whole)
        for index, (out, stream) in enumerate(zip(outputs, streams, strict=True)):
            out = b.cast(out, "f32")
            with b.scope(f"stream{index}"):
                whole = out if stream.replicated else strategy.gather(b, out, stream.length)
                b.output(f"out{index}", b.contiguous(whole))
        return b, strategy, values


def slots_of(plane: np.ndarray, strategy: AttentionStrategy, poison: float) -> np.ndarray:
    """This rank's part of [B, S, H, D], padding included."""
    if outer := getattr(strategy, "outer", None):
        share = outer.share(plane.shape[1])
        plane = plane[:, share.local_offset : share.local_offset + share.local_length]
    if strategy.degree == 1:
        return plane
    share = strategy.share(plane.shape[1])
    slots = np.full((plane.shape[0], share.local_length, *plane.shape[2:]), poison, np.float32)
    count = share.valid_lengths[share.rank]
    slots[:, :count] = plane[:, share.local_offset : share.local_offset + count]
    return slots
