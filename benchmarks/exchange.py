"""What one exchange of q, k and v costs over two ranks: pack + exchange + receive, against a copy of the bytes moved.

    mpiexec -n 2 python benchmarks/exchange.py [--pairs 15]

4608 tokens x 24 heads x 128, sequence -> head, no norm, no rotation, one thread a rank. The copy is one memcpy of as
many bytes as the rank sends to and receives from the other one, timed on both ranks at once; so is everything else. A
round takes as long as the slower rank.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import time
from collections.abc import Callable

import numpy as np
from measurement import summary
from record import save

from edgedit import ParallelConfig, ParallelContext, dtypes
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.executor import Executor
from edgedit.graph.tensor import Tensor
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.times import RunTimes
from edgedit.sequence import exchange as generic
from edgedit.sequence.fused import PLANES, exchange_of
from edgedit.sequence.layouts import Direction, SPAllToAll4DBatchLayout
from edgedit.sequence.split import SPSequenceSplit

TOKENS, HEADS, HEAD_DIM = 4608, 24, 128
# on the wire -> before and after it
TYPES = {"f32": "f32", "f16": "f32", "bf16": "bf16"}


class Trade:
    """One exchange as a graph of its own, whose inputs are set once."""

    def __init__(self, context: ParallelContext, wire: str, fused: bool) -> None:
        group = context.group("ulysses")
        split = SPSequenceSplit(TOKENS, group.size, group.rank)
        self.layout = SPAllToAll4DBatchLayout(Direction.SEQ_TO_HEAD, (split,), HEADS, HEAD_DIM, planes=PLANES)
        b = GraphBuilder("exchange", "fused" if fused else "generic")
        shape = (1, split.lengths[group.rank], HEADS, HEAD_DIM)
        planes = [b.input(f"plane{plane}", shape, TYPES[wire]) for plane in range(PLANES)]
        make = self._fused if fused else self._generic
        b.output("received", make(b, planes, wire))
        self.executor = Executor(b, CpuBackend(1), context, degree=group.size)
        for plane in planes:
            _fill(plane)

    def _fused(self, b: GraphBuilder, planes: list[Tensor], wire: str) -> Tensor:
        exchange = exchange_of(self.layout, [wire] * PLANES)
        send = b.pack(exchange, [planes])
        counts = self.layout.send_counts, self.layout.recv_counts
        received = b.collective(
            "all_to_all", "qkv", "ulysses", send, (sum(counts[1]),), *counts, self.layout.rank
        )
        return b.receive_planes(exchange, received, TYPES[wire])

    def _generic(self, b: GraphBuilder, planes: list[Tensor], wire: str) -> Tensor:
        return generic.streams_to_heads(b, self.layout, [planes], "ulysses", wire)

    def __call__(self) -> None:
        runner = self.executor._runner
        assert runner is not None
        runner.run(RunTimes())
        runner.finish()

    def nbytes_to_others(self, wire: str) -> int:
        counts = self.layout.send_counts
        return (sum(counts) - counts[self.layout.rank]) * dtypes.itemsize(wire)


def _fill(plane: Tensor) -> None:
    """Values as activations have them, in the plane's own type."""
    values = np.random.default_rng(0).standard_normal(plane.count, dtype=np.float32)
    stored = dtypes.f32_to_bf16(values) if plane.dtype == "bf16" else values
    ctypes.memmove(plane.address, stored.ctypes.data, stored.nbytes)


class Copy:
    def __init__(self, nbytes: int) -> None:
        self.source, self.target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)

    def __call__(self) -> None:
        ctypes.memmove(self.target.ctypes.data, self.source.ctypes.data, self.source.nbytes)


def measure(
    group: ProcessGroup, candidates: dict[str, Callable[[], None]], pairs: int
) -> dict[str, list[float]]:
    """Seconds of each candidate in turn, the slower rank's; the ranks start every one together."""
    own = np.zeros((pairs + 2, len(candidates)))
    for row in own:
        for column, run in enumerate(candidates.values()):
            group.barrier()
            began = time.perf_counter()
            run()
            row[column] = time.perf_counter() - began
    slowest = np.empty_like(own)
    group.all_reduce(Buffer.of(own), Buffer.of(slowest), "max")
    return {name: slowest[2:, column].tolist() for column, name in enumerate(candidates)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    pairs = parser.parse_args().pairs
    with contextlib.ExitStack() as stack:
        contexts = {
            backend: stack.enter_context(
                ParallelContext(ParallelConfig.from_env(ulysses_degree=2, backend=backend, comm="in-graph"))
            )
            for backend in ("shm", "mpi")
        }
        group = contexts["shm"].group("world")
        measured = {}
        for wire, activation in TYPES.items():
            trades = {
                f"{kind} {backend}": Trade(context, wire, kind == "fused")
                for kind in ("fused", "generic")
                for backend, context in contexts.items()
                if kind == "fused" or activation == "f32"  # the generic nodes take f32 only
            }
            nbytes = 2 * next(iter(trades.values())).nbytes_to_others(wire)
            seconds = measure(group, {"copy": Copy(nbytes), **trades}, pairs)
            name = f"{activation} over {wire}"
            measured[name] = {"copied_nbytes": nbytes, **summary(seconds, "copy")}
            for trade in trades.values():
                trade.executor.close()
        if group.rank == 0:
            shape = {"tokens": TOKENS, "heads": HEADS, "head_dim": HEAD_DIM, "planes": PLANES}
            save("exchange", {**shape, "ranks": 2, "threads": 1, "pairs": pairs, "measured": measured})
        group.barrier()


if __name__ == "__main__":
    main()
