"""The order of stock nodes and ours on the device: right with fences under load, and wrong without them."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedit.config import ParallelConfig
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.cuda import CudaExecutor
from edgedit.graph.executor import Executor
from edgedit.parallel.context import ParallelContext

SIZE, HOPS, RUNS = 1536, 24, 20


def program() -> GraphBuilder:
    """Large products, each followed by an operator of ours that reads its result: a hop between streams each."""
    b = GraphBuilder("hops", "fused")
    x, w, gate = b.input("x", (1, SIZE, SIZE)), b.input("w", (1, SIZE, SIZE)), b.input("gate", (1, 1, SIZE))
    for _ in range(HOPS):
        x = b.gated_residual(x, gate, b.matmul(x, w))
    b.output("y", x)
    return b


def inputs(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((1, SIZE, SIZE), dtype=np.float32),
        "w": rng.standard_normal((1, SIZE, SIZE), dtype=np.float32) / np.float32(SIZE**0.5),
        "gate": np.full((1, 1, SIZE), 0.25, np.float32),
    }


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def test_fences_keep_the_order_under_load_and_their_absence_shows(device: Any) -> None:
    context = ParallelContext(ParallelConfig())
    reference = Executor(program(), CpuBackend(8), context)
    expected = [reference.run(inputs(seed))["y"] for seed in range(2)]
    executor = CudaExecutor(program(), device, ParallelContext(ParallelConfig(comm="in-graph")))
    first = executor.run(inputs(0))["y"]
    assert relative(first, expected[0]) < 1e-2  # products may run in TF32
    for run in range(RUNS):
        again = executor.run(inputs(run % 2))["y"]
        assert relative(again, expected[run % 2]) < 1e-2
        if run % 2 == 0:
            np.testing.assert_array_equal(again, first, err_msg=f"run {run} differs in bits")

    executor._runner._plan.compile(fenced=False)  # type: ignore[union-attr]
    errors = [relative(executor.run(inputs(run % 2))["y"], expected[run % 2]) for run in range(RUNS)]
    assert max(errors) > 1e-1 or not np.isfinite(errors).all(), "right without fences: the test sees no order"
    executor.close()
    reference.close()
