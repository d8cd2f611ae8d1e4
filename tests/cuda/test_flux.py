"""A step of the mini FLUX on one device against the CPU, with fused operators and with stock nodes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flux_mini import request, run_flux, write_mini

from edgedit.config import ParallelConfig
from edgedit.graph.cuda import CudaExecutor, to_device
from edgedit.models.flux import FluxTransformer
from edgedit.parallel.context import ParallelContext


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mini")
    write_mini(path)
    return path


@pytest.fixture(scope="module")
def on_cpu(directory: Path) -> np.ndarray:
    return run_flux(directory, ParallelContext(ParallelConfig(ops="generic")))


@pytest.mark.parametrize("comm", ["in-graph", "graph-cut"])
@pytest.mark.parametrize("ops", ["fused", "generic"])
def test_a_step_on_the_device_is_the_step_of_the_cpu(
    device: Any, directory: Path, on_cpu: np.ndarray, ops: str, comm: str
) -> None:
    model = FluxTransformer.from_pretrained(directory, parallel=ParallelConfig(ops=ops, comm=comm))
    weights = to_device((parameter for _, parameter in model.network.named_parameters()), device)
    model.backend, model._make_executor = device, CudaExecutor
    outputs = [model(**request()) for _ in range(3)]  # from the second on, captured CUDA graphs
    for output in outputs:
        error = np.linalg.norm(output - on_cpu) / np.linalg.norm(on_cpu)
        assert error < 5e-3, f"relative error {error}"  # products may run in TF32
    np.testing.assert_array_equal(outputs[1], outputs[0])
    np.testing.assert_array_equal(outputs[2], outputs[0])
    model._executors.popitem()[1].close()
    weights.close()
