"""`edgedit._cuda` on the CPU: plans run at once, by ggml's CPU backend and the CPU operators, and keep a record.

It lets the Python side of the device path run without a device; what only a device can show is in tests/cuda.
"""

from __future__ import annotations

import ctypes
from typing import Any

from edgedit import _native
from edgedit.graph._ggml import lib

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


class DeviceError(RuntimeError):
    pass


class Channel:
    """Of a group of one: what is sent is what is received."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.aborted = False
        self.error = ""

    def failure(self) -> str:
        return self.error

    def abort(self) -> None:
        self.aborted = True


class Collective:
    def __init__(self, kind: str, channel: Any, *arguments: Any) -> None:
        self.kind, self.channel, self.arguments = kind, channel, arguments

    exchange = classmethod(lambda cls, channel, blocks: cls("exchange", channel, blocks))
    all_gather = classmethod(lambda cls, channel, nbytes: cls("all_gather", channel, nbytes))
    broadcast = classmethod(lambda cls, channel, nbytes, root: cls("broadcast", channel, nbytes, root))
    all_reduce = classmethod(lambda cls, channel, *arguments: cls("all_reduce", channel, *arguments))


class Plan:
    def __init__(self, backend: Any, device: int) -> None:
        self.backend = backend
        self.steps: list[tuple[Any, ...]] = []
        self.compiled = False
        self.runs = 0

    def segment(self, graph: int) -> None:
        self.steps.append(("segment", graph))

    def operation(self, name: str, node: int, spec: int) -> None:
        self.steps.append(("operation", name, node, spec))

    def start(self, node: int, collective: Collective) -> int:
        self.steps.append(("start", node, collective))
        return sum(step[0] == "start" for step in self.steps) - 1

    def wait(self, flight: int) -> None:
        self.steps.append(("wait", flight))

    def compile(self, fenced: bool = True) -> None:
        self.compiled = True

    def run(self) -> None:
        assert self.compiled
        self.runs += 1
        for step in self.steps:
            if step[0] == "segment":
                graph = ctypes.cast(step[1], ctypes.POINTER(lib.ggml_cgraph))
                assert graph.contents.uid, "a view without a uid is compared node by node on every run"
                for position in range(graph.contents.n_nodes):
                    assert graph.contents.nodes[position].contents.op != lib.GGML_OP_CUSTOM
                status = lib.ggml_backend_graph_compute(self.backend, graph)
                assert status == lib.GGML_STATUS_SUCCESS
            elif step[0] == "operation":
                CALLBACK(getattr(_native.ops, step[1]))(step[2], 0, 1, step[3])
            elif step[0] == "start":
                node = ctypes.cast(step[1], ctypes.POINTER(lib.ggml_tensor)).contents
                source = node.src[0].contents
                ctypes.memmove(node.data, source.data, lib.ggml_nbytes(node.src[0]))

    def has_ended(self) -> bool:
        return True


class Module:
    """What `import edgedit._cuda` gives."""

    DeviceError = DeviceError
    Collective = Collective

    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def Plan(self, backend: Any, device: int) -> Plan:
        self.plans.append(Plan(backend, device))
        return self.plans[-1]

    def device_count(self) -> int:
        return 1
