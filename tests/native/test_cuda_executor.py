"""The Python side of the device path: how a graph becomes a plan, and what a missing device says."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import fake_cuda
import numpy as np
import pytest
from graph_runner import random

from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError, GgmlError
from edgedit.graph._ggml import lib
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.cuda import CudaBackend, CudaExecutor
from edgedit.graph.executor import Executor
from edgedit.graph.tensor import Tensor
from edgedit.parallel import cuda
from edgedit.parallel.backends.device import DeviceGroup
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.context import ParallelContext
from edgedit.parallel.monitor import Monitor
from edgedit.parallel.process_group import ProcessGroup


class DeviceBackend(CpuBackend):
    """A CPU that says it is device 0."""

    device, name = 0, "cuda:0"


class SelfGroup(DeviceGroup):
    """A device group of one rank: every exchange is a copy."""

    def __init__(self) -> None:
        super(DeviceGroup, self).__init__("ulysses", [0], 0, Monitor(0, 1), None)
        self.device, self.slots, self.channel = 0, [], fake_cuda.Channel()
        self.copied = 0

    def native_channel(self, slot_nbytes: int) -> Any:
        self.slots.append(slot_nbytes)
        return self.channel

    def _exchange(self, send: int, recv: int, blocks: Any) -> Callable[[], bool]:
        from_own, _, to_own, nbytes = blocks[0]
        ctypes.memmove(recv + to_own, send + from_own, nbytes)
        return lambda: True

    def copy(self, source: Buffer, target: Buffer) -> None:
        ctypes.memmove(target.pointer, source.pointer, source.nbytes)
        self.copied += 1

    def _parts(self, nbytes: int) -> Any:
        raise AssertionError

    def _reduce(self, *arguments: Any) -> None:
        raise AssertionError

    def _give_up(self) -> None:
        raise AssertionError

    def close(self) -> None:
        pass


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> fake_cuda.Module:
    module = fake_cuda.Module()
    monkeypatch.setitem(sys.modules, "edgedit._cuda", module)
    # a group of one has no communicator to make
    monkeypatch.setattr("edgedit.parallel.backends.mpi.MpiGroup.__init__", _plain_init)
    return module


def _plain_init(self: Any, name: str, ranks: Any, rank: int, monitor: Monitor, comm: Any) -> None:
    ProcessGroup.__init__(self, name, ranks, rank, monitor)


def context(comm: str, group: SelfGroup | None = None) -> ParallelContext:
    made = ParallelContext(ParallelConfig(comm=comm))
    if group is not None:
        made._groups["ulysses"] = group
    return made


def kinds(plan: fake_cuda.Plan) -> list[str]:
    return [step[0] for step in plan.steps]


def copied(b: GraphBuilder, x: Tensor) -> Tensor:
    """x through `empty` and `write`, nodes of which the first is ours and does nothing."""
    return b.write(b.empty(x.shape), x, (x.shape[1], 1), 0)


def build(b: GraphBuilder) -> None:
    """Two collectives over a group of one, with compute before, between and after."""
    x = b.input("x", (3, 4))
    sent = copied(b, b.scale(x, 2.0))
    gathered = b.all_gather("gather", sent, _One())
    meanwhile = b.silu(x)
    told = b.broadcast("tell", b.add(gathered, meanwhile), _One())
    b.output("y", b.add(told, x))


class _One:
    name, rank, size = "ulysses", 0, 1


def expected(x: np.ndarray) -> np.ndarray:
    return 2 * x + x / (1 + np.exp(-x)) + x


@pytest.mark.parametrize("comm", ["in-graph", "graph-cut"])
def test_a_device_computes_what_the_cpu_computes(extension: fake_cuda.Module, comm: str) -> None:
    group = SelfGroup()
    b = GraphBuilder("device")
    build(b)
    executor = CudaExecutor(b, DeviceBackend(), context(comm, group), degree=1)
    for seed in range(2):
        x = random(3, 4, seed=seed)
        np.testing.assert_allclose(executor.run({"x": x})["y"], expected(x), atol=1e-6)
    executor.close()
    assert group.copied == (0 if comm == "in-graph" else 2)


def test_in_graph_is_one_plan_in_the_order_of_the_schedule(extension: fake_cuda.Module) -> None:
    group = SelfGroup()
    b = GraphBuilder("device")
    build(b)
    executor = CudaExecutor(b, DeviceBackend(), context("in-graph", group))
    (plan,) = extension.plans
    assert [kind for kind in kinds(plan) if kind != "segment"] == ["start", "wait", "start", "wait"]
    starts = [step[2] for step in plan.steps if step[0] == "start"]
    assert [(c.kind, c.arguments) for c in starts] == [("all_gather", (48,)), ("broadcast", (48, 0))]
    assert [c.channel for c in starts] == [group.channel] * 2
    assert group.slots == [0]  # nothing goes to others
    calls = group._sequence
    executor.run({"x": random(3, 4)})
    assert (plan.runs, group._sequence - calls) == (1, 2)
    executor.close()


def test_a_failure_of_a_channel_ends_the_run_and_frees_the_device(extension: fake_cuda.Module) -> None:
    group = SelfGroup()
    b = GraphBuilder("device")
    build(b)
    executor = CudaExecutor(b, DeviceBackend(), context("in-graph", group))
    group.channel.error = "unhandled system error"
    with pytest.raises(EdgeditError, match=r"run of device.*unhandled system error"):
        executor.run({"x": random(3, 4)})
    assert group.channel.aborted
    executor.close()


def test_attention_in_parts_is_the_devices(extension: fake_cuda.Module) -> None:
    q, k, v = (random(1, tokens, 2, 8, seed=tokens) for tokens in (3, 10, 11))
    v = v[:, :10]

    def build(b: GraphBuilder) -> None:
        of_q, of_k, of_v = (b.input(name, x.shape) for name, x in zip("qkv", (q, k, v), strict=True))
        parts = [
            b.attention_partial(of_q, b.slice(of_k, 1, *ends), b.slice(of_v, 1, *ends))
            for ends in ((0, 4), (4, 9), (9, 10))
        ]
        b.output("y", b.attention_merged(b.attention_merge(*parts[:2]), parts[2]))

    results = []
    for make, backend, way in (
        (Executor, CpuBackend(1), ParallelContext(ParallelConfig())),
        (CudaExecutor, DeviceBackend(), context("in-graph")),
    ):
        b = GraphBuilder("device", kernels="ggml")
        build(b)
        results.append(make(b, backend, way).run({"q": q, "k": k, "v": v})["y"])
    np.testing.assert_array_equal(*results)
    operations = [step[1] for step in extension.plans[0].steps if step[0] == "operation"]
    assert sorted(operations) == ["attention_merge"] * 2 + ["attention_partial"] * 3


def test_host_groups_are_refused_with_the_backends_that_serve_devices(extension: fake_cuda.Module) -> None:
    b = GraphBuilder("device")
    build(b)
    with pytest.raises(EdgeditError, match="nccl or cuda-ipc"):
        CudaExecutor(b, DeviceBackend(), context("in-graph"))


def test_a_custom_node_without_a_cuda_operator_is_named(extension: fake_cuda.Module) -> None:
    b = GraphBuilder("device")
    x = b.input("x", (2, 4))
    node = b.empty((2, 4), "mine")
    node.pointer.contents.op_params[0] ^= 64  # some other function
    b.output("y", b.write(node, x, (4, 1), 0))
    with pytest.raises(GgmlError, match="node mine has no CUDA operator"):
        CudaExecutor(b, DeviceBackend(), context("graph-cut"))


def test_without_the_extension_a_device_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "edgedit._cuda", None)
    with pytest.raises(EdgeditError, match="make cuda"):
        CudaBackend(0)
    with pytest.raises(EdgeditError, match="make cuda"):
        cuda.extension()


def test_without_a_device_the_error_says_what_cuda_says(
    extension: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension, "device_count", lambda: 0)
    monkeypatch.setattr(extension, "why_no_device", lambda: "driver too old", raising=False)
    with pytest.raises(EdgeditError, match="driver too old"):
        CudaBackend(0)


def test_a_ggml_without_cuda_is_named_with_the_way_to_get_one(extension: fake_cuda.Module) -> None:
    if lib.ggml_backend_dev_by_name(b"CUDA0"):
        pytest.skip("this ggml has CUDA")
    with pytest.raises(ValueError, match="CUDA device 1; legal: 0 to 0"):
        CudaBackend(1)
    with pytest.raises(EdgeditError, match="GGML_CUDA=ON"):
        CudaBackend(0)
