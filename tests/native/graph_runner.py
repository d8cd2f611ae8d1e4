"""Runs a small graph on one rank: numpy in, numpy out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgedit.config import ParallelConfig
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.executor import Executor
from edgedit.graph.tensor import Tensor
from edgedit.parallel.context import ParallelContext


def run_graph(
    build: Callable[..., Tensor], *arrays: np.ndarray, threads: int = 1, **choices: str
) -> np.ndarray:
    """`build(b, *inputs)` returns the output tensor; the arrays are the inputs' values (f32 or i32).

    `choices` are those of the builder.
    """
    b = GraphBuilder("test", **choices)
    names = [f"x{index}" for index in range(len(arrays))]
    inputs = [
        b.input(name, array.shape, "i32" if array.dtype == np.int32 else "f32")
        for name, array in zip(names, arrays, strict=True)
    ]
    b.output("y", b.contiguous(build(b, *inputs)))
    executor = Executor(b, CpuBackend(threads), ParallelContext(ParallelConfig()))
    try:
        return executor.run(dict(zip(names, arrays, strict=True)))["y"]
    finally:
        executor.close()


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)
