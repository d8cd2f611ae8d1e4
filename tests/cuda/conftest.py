"""Tests on a CUDA device; without one they are skipped with the reason. Run them all by run.sh."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.cuda import CudaBackend, CudaExecutor
from edgedit.graph.executor import Executor
from edgedit.graph.tensor import Tensor
from edgedit.parallel.context import ParallelContext

Build = Callable[..., Tensor]


@pytest.fixture(scope="session")
def device() -> Any:
    try:
        return CudaBackend(0)
    except EdgeditError as error:
        if os.environ.get("EDGEDIT_REQUIRE_CUDA"):  # run.sh: nothing may be left out unseen
            raise
        pytest.skip(str(error))


@pytest.fixture
def both(device: Any) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """`both(build, *arrays, ops=)`: what a graph gives on the CPU and on the device. `build(b, *inputs)` returns it."""

    def run(build: Build, *arrays: np.ndarray, ops: str = "auto", cpu_ops: str = "") -> Any:
        results = []
        for make, backend, mode in (
            (Executor, CpuBackend(4), cpu_ops or ops),
            (CudaExecutor, device, ops),
        ):
            b = GraphBuilder("test", mode)
            inputs = {f"x{i}": array for i, array in enumerate(arrays)}
            leaves = [
                b.input(name, array.shape, "i32" if array.dtype == np.int32 else "f32")
                for name, array in inputs.items()
            ]
            b.output("y", build(b, *leaves))
            executor = make(b, backend, ParallelContext(ParallelConfig()))
            results.append(executor.run(inputs)["y"])
            executor.close()
        return tuple(results)

    return run
