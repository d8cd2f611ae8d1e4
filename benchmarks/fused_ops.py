"""The fused operators, apart from any transport.

    python benchmarks/fused_ops.py [--tokens 4608] [--heads 24] [--pairs 15] [--model mini]

exchange  pack and receive of q, k and v of the tokens that one of two ranks owns, each against one memcpy of the bytes
          that the rank sends and receives, and against the generic nodes. No norm, no rotation, one thread. With
          --ranks 2 two processes measure at once, as two ranks would, and the slower one counts.
step      one forward pass of a FLUX model on one rank, fused against generic nodes, products by ggml in both:
          processor time of one thread.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
from measurement import alternate, summary
from record import save

from edgedit.config import ParallelConfig
from edgedit.graph import _ggml
from edgedit.graph._ggml import lib
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.tensor import Tensor
from edgedit.models.random_flux import SIZES, random_request, random_transformer
from edgedit.parallel.context import ParallelContext
from edgedit.sequence import fused
from edgedit.sequence.layouts import Direction, SPAllToAll4DBatchLayout
from edgedit.sequence.split import SPSequenceSplit

HEAD_DIM = 128
RANKS = 2
# input and output -> wire; the generic nodes take f32 only
CASES = {"f32": ("f32", "f32"), "f16 wire": ("f32", "f16"), "bf16": ("bf16", "bf16")}


class Part:
    """A small graph whose leaves hold random values, run as one."""

    def __init__(self, build: Callable[[GraphBuilder], list[Tensor]]) -> None:
        self.builder = b = GraphBuilder("part")
        self.backend = CpuBackend(1)
        nodes = build(b)
        self.leaves = lib.ggml_backend_alloc_ctx_tensors(b._leaf_context, self.backend.pointer)
        rng = np.random.default_rng(0)
        for tensor in b.inputs.values():
            values = rng.standard_normal(tensor.count, np.float32)
            if tensor.dtype == "f16":
                raw = values.astype(np.float16).view(np.uint8)
            elif tensor.dtype == "bf16":
                raw = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
            else:
                raw = values.view(np.uint8)
            lib.ggml_backend_tensor_set(tensor.pointer, raw.ctypes.data, 0, raw.nbytes)
        self.context = lib.ggml_init(
            lib.ggml_init_params(lib.ggml_graph_overhead_custom(4096, False) + 4096, None, True)
        )
        self.graph = lib.ggml_new_graph_custom(self.context, 4096, False)
        for tensor in nodes:
            lib.ggml_build_forward_expand(self.graph, tensor.pointer)
        self.allocator = lib.ggml_gallocr_new(self.backend.buffer_type)
        assert lib.ggml_gallocr_alloc_graph(self.allocator, self.graph)

    def __call__(self) -> None:
        lib.ggml_backend_graph_compute(self.backend.pointer, self.graph)


def parts(tokens: int, heads: int, dtype: str, wire: str) -> tuple[dict[str, Callable[[], object]], int]:
    """What is timed, and the bytes that the rank sends and receives."""
    from edgedit.sequence import exchange as generic

    split = SPSequenceSplit(tokens, RANKS, 0)
    layout = SPAllToAll4DBatchLayout(Direction.SEQ_TO_HEAD, (split,), heads, HEAD_DIM, 3)
    plan = fused.exchange_of(layout, (wire,) * 3)
    shape = (1, split.local_length, heads, HEAD_DIM)

    def streams(b: GraphBuilder) -> list[Tensor]:
        return [b.input(name, shape, dtype) for name in "qkv"]

    def received(b: GraphBuilder) -> Tensor:
        return b.input("received", (sum(layout.recv_counts),), wire)

    def pack_of_stock_nodes(b: GraphBuilder) -> list[Tensor]:
        planes, send = streams(b), b.empty((sum(layout.send_counts),), "send")
        for copy in layout.sequence_side():
            send = generic._into_buffer(b, send, planes[copy.plane], copy)
        return [b.cast(send, wire)]

    def receive_of_stock_nodes(b: GraphBuilder) -> list[Tensor]:
        buffer = b.cast(received(b), "f32")
        joint = generic._from_buffer(b, buffer, b.empty(layout.joint_shape, "joint"), layout.head_side())
        # attention reads the planes where they stand, so nothing more is copied here
        return [joint]

    made: dict[str, Callable[[], object]] = {
        "pack": Part(lambda b: [b.pack(plan, [streams(b)])]),
        "receive": Part(lambda b: [b.receive_planes(plan, received(b), dtype)]),
    }
    if dtype == "f32":
        made["pack_generic"] = Part(pack_of_stock_nodes)
        made["receive_generic"] = Part(receive_of_stock_nodes)
    itemsize = _ggml.row_nbytes(wire, 1)
    exchanged = sum(layout.send_counts[1:]) + sum(layout.recv_counts[1:])
    source, target = np.ones(exchanged * itemsize, np.uint8), np.zeros(exchanged * itemsize, np.uint8)
    made["memcpy"] = lambda: ctypes.memmove(target.ctypes.data, source.ctypes.data, source.nbytes)
    return made, source.nbytes


def measure_case(arguments: argparse.Namespace, name: str, barrier: Barrier | None = None) -> dict[str, Any]:
    dtype, wire = CASES[name]
    candidates, nbytes = parts(arguments.tokens, arguments.heads, dtype, wire)
    if barrier:
        inner = candidates
        candidates = {key: _together(run, barrier) for key, run in inner.items()}
    measured = summary(alternate(candidates, arguments.pairs), "memcpy")
    both = sum(measured[key]["ratio_to_memcpy"] for key in ("pack", "receive"))
    return {"nbytes": nbytes, "pack_and_receive_to_memcpy": round(both, 3), **measured}


def _together(run: Callable[[], object], barrier: Barrier) -> Callable[[], object]:
    """Both processes begin a candidate at once; the time to the end of the slower one is measured by both."""

    def both() -> None:
        barrier.wait()
        run()
        barrier.wait()

    return both


def _rank(arguments: argparse.Namespace, barrier: Barrier, results: Any) -> None:
    measured = {name: measure_case(arguments, name, barrier) for name in CASES}
    results.put(measured)


def exchange(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.ranks == 1:
        return {name: measure_case(arguments, name) for name in CASES}
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(arguments.ranks), spawn.Queue()
    ranks = [spawn.Process(target=_rank, args=(arguments, barrier, results)) for _ in range(arguments.ranks)]
    for rank in ranks:
        rank.start()
    measured = [results.get() for _ in ranks]
    for rank in ranks:
        rank.join()
    return measured[0]


def step(arguments: argparse.Namespace) -> dict[str, Any]:
    request = random_request(arguments.model)
    models = {
        ops: random_transformer(
            arguments.model, context=ParallelContext(ParallelConfig(ops=ops, kernels="ggml"))
        )
        for ops in ("fused", "generic")
    }
    outputs = {ops: model(**request) for ops, model in models.items()}
    difference = np.abs(outputs["fused"] - outputs["generic"]).max()
    runs = {ops: (lambda model=model: model(**request)) for ops, model in models.items()}
    seconds = alternate(runs, arguments.step_pairs, 1, time.process_time)
    nodes = {ops: len(next(reversed(m._executors.values())).schedule.order) for ops, m in models.items()}
    return {"nodes": nodes, "max_difference": float(difference), **summary(seconds, "generic")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4608)
    parser.add_argument("--heads", type=int, default=24)
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=2)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--model", choices=SIZES, default="mini")
    parser.add_argument("--step-pairs", type=int, default=5)
    arguments = parser.parse_args()
    save(
        "fused-ops",
        {
            "tokens": arguments.tokens,
            "heads": arguments.heads,
            "head_dim": HEAD_DIM,
            "ranks_at_once": arguments.ranks,
            "pairs": arguments.pairs,
            "exchange": exchange(arguments),
            "model": arguments.model,
            "step": step(arguments),
        },
    )


if __name__ == "__main__":
    main()
