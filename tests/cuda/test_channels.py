"""NCCL with one rank; NCCL and cuda-ipc with two ranks, which may share one device."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch import command, environment
from one_rank import OneRankGroup

from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.cuda import CudaExecutor
from edgedit.parallel import cuda
from edgedit.parallel.context import ParallelContext

HERE = Path(__file__).parent
# The first NCCL that lets ranks share a device.
MULTI_RANK_NCCL = 23200


class One:
    name, rank, size = "ulysses", 0, 1


@pytest.fixture
def nccl_version(device: Any) -> int:
    try:
        return int(cuda.usable_extension().nccl_version(cuda.nccl_library()))
    except RuntimeError as error:
        pytest.skip(str(error))


def test_one_rank_gets_back_what_it_sends(device: Any, nccl_version: int) -> None:
    b = GraphBuilder("one rank", "fused")
    x = b.input("x", (64, 256))
    y = b.all_gather("gather", b.scale(x, 2.0), One())
    y = b.broadcast("tell", b.add(y, x), One())
    y = b.all_to_all("exchange", b.reshape(y, (x.count,)), One(), [x.count], [x.count])
    y = b.all_reduce("sum", b.scale(y, 1.0), One())
    b.output("y", b.reshape(y, (64, 256)))
    context = ParallelContext(ParallelConfig(comm="in-graph"))
    context._groups["ulysses"] = OneRankGroup()
    executor = CudaExecutor(b, device, context)
    for seed in range(3):
        values = np.random.default_rng(seed).standard_normal((64, 256), dtype=np.float32)
        np.testing.assert_array_equal(executor.run({"x": values})["y"], 3 * values)
    executor.close()


@pytest.mark.parametrize("backend", ["nccl", "cuda-ipc"])
def test_two_ranks_agree_with_one(device: Any, nccl_version: int, backend: str, tmp_path: Path) -> None:
    devices = cuda.usable_extension().device_count()
    if devices < 2 and nccl_version < MULTI_RANK_NCCL:
        pytest.skip(f"one device, and NCCL {nccl_version} does not let two ranks share it")
    try:
        cuda.import_cupy()
    except EdgeditError as error:
        pytest.skip(str(error))
    env = environment({"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
    env["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), env["PYTHONPATH"]])
    if devices == 1:
        env["CUDA_VISIBLE_DEVICES"] = "0"  # two ranks on one visible device share it in turn
    program = command(2, HERE / "two_ranks.py", backend, tmp_path)
    done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=200, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
    assert done.stdout.count("all checks passed") == 2, done.stdout
