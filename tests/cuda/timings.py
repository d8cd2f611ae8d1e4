"""Time of pack and receive on the device, beside a device copy of the bytes that they write.

FLUX at 1024 x 1024 pixels: q, k and v of 4096 + 512 tokens, 24 heads of 128 channels, as rank 0 of 2 sees them.

    python tests/cuda/timings.py [repeats]
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from edgedit.config import ParallelConfig
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.cuda import CudaBackend, CudaExecutor
from edgedit.graph.ops.exchange import Preparation
from edgedit.graph.registry import Exchange
from edgedit.graph.tensor import Tensor
from edgedit.parallel import cuda
from edgedit.parallel.context import ParallelContext

TOKENS, HEADS, HEAD_DIM, RANKS = (512, 4096), 24, 128, 2


def exchange_over(wire: str) -> Exchange:
    return Exchange(RANKS, 0, TOKENS, HEADS, HEAD_DIM, 1, False, (wire,) * 3)


def preparation_of(b: GraphBuilder, lengths: tuple[int, ...]) -> Preparation:
    weight = b.constant("norm", np.ones(HEAD_DIM, np.float32))
    periods = b.constant("periods", np.linspace(1, 1e4, HEAD_DIM // 2, dtype=np.float32))
    tables = tuple(
        b.rope_table(b.input(f"positions{i}", (1, count), "i32"), [periods])
        for i, count in enumerate(lengths)
    )
    return Preparation(((weight, weight, None),) * 2, (True, True, False), tables)


def pack(b: GraphBuilder, exchange: Exchange, prepared: bool) -> Tensor:
    streams = [
        [b.input(f"x{i}{plane}", (1, tokens, HEADS, HEAD_DIM)) for plane in "qkv"]
        for i, tokens in enumerate(exchange.local_tokens)
    ]
    return b.pack(exchange, streams, preparation_of(b, exchange.local_tokens) if prepared else None)


def receive(b: GraphBuilder, exchange: Exchange, prepared: bool) -> Tensor:
    buffer = b.cast(b.input("x", (exchange.head_rows * exchange.elements_per_row,)), exchange.buffer_dtype)
    preparation = preparation_of(b, exchange.tokens) if prepared else None
    return b.receive_planes(exchange, buffer, preparation=preparation)


def seconds(build: Callable[[GraphBuilder], Tensor], backend: CudaBackend, repeats: int) -> tuple[float, int]:
    """Mean seconds of the operator that `build` returns, and the bytes that it writes."""
    b = GraphBuilder("timing", "fused")
    result = build(b)
    b.output("y", b.scale(b.cast(b.slice(result, 0, 0, 1), "f32"), 1.0))
    executor = CudaExecutor(b, backend, ParallelContext(ParallelConfig(comm="in-graph")))
    inputs = {
        name: np.zeros(x.shape, np.int32 if x.dtype == "i32" else np.float32) for name, x in b.inputs.items()
    }
    executor.run(inputs)
    # The operator alone, again and again, over the memory that the graph gave it.
    node = next(node for node in b.nodes if node.op in ("pack", "receive"))
    plan = cuda.usable_extension().Plan(backend.pointer, backend.device)
    plan.operation(node.op, ctypes.addressof(b.pointers[node.index].contents), b._specs[-1].address)
    plan.compile()
    took = _mean_of(plan, repeats)
    nbytes = result.nbytes
    executor.close()
    return took, nbytes


def _mean_of(plan: Any, repeats: int) -> float:
    for count in (3, repeats):  # the first ones warm up
        began = time.perf_counter()
        for _ in range(count):
            plan.run()
        while not plan.has_ended():
            pass
    return (time.perf_counter() - began) / count


def main(repeats: int) -> None:
    backend = CudaBackend(0)
    extension = cuda.usable_extension()
    print(f"{'operator':34} {'MB written':>10} {'us':>8} {'copy us':>8} {'ratio':>6} {'GB/s':>7}")
    for wire in ("f32", "f16", "bf16"):
        exchange = exchange_over(wire)
        for name, build in (("pack", pack), ("receive", receive)):
            for prepared in (False, True):
                built = partial(build, exchange=exchange, prepared=prepared)
                took, nbytes = seconds(built, backend, repeats)
                copy = extension.copy_seconds(nbytes, repeats)
                label = f"{name} {wire}{', norm and rotation' if prepared else ''}"
                print(
                    f"{label:34} {nbytes / 1e6:10.1f} {took * 1e6:8.1f} {copy * 1e6:8.1f} {took / copy:6.2f} "
                    f"{nbytes / took / 1e9:7.0f}"
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
