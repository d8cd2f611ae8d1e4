"""Started by test_channels.py on two ranks: collectives of a device backend against counts, and FLUX against one rank.

mpiexec -n 2 python two_ranks.py nccl|cuda-ipc DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from flux_mini import run_flux, write_mini

from edgedit.config import ParallelConfig
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.cuda import CudaBackend, CudaExecutor
from edgedit.parallel.context import ParallelContext


def block(sender: int, receiver: int, count: int) -> np.ndarray:
    return (1000 * sender + 100 * receiver + np.arange(count)).astype(np.float32)


def check_collectives(context: ParallelContext, backend: CudaBackend) -> dict[str, np.ndarray]:
    """Exchange of unequal blocks (none from 1 to 0), gather of unequal shares, broadcast and sum, in one graph."""
    group = context.group("ulysses")
    me = group.rank
    counts = [[3, 70000], [0, 5]]  # [sender][receiver]
    b = GraphBuilder("collectives")
    x = b.input("x", (sum(counts[me]),))
    y = b.input("y", (4 + me, 8))
    z = b.input("z", (1001,))
    received = [counts[0][me], counts[1][me]]
    b.output("exchanged", b.all_to_all("blocks", b.scale(x, 1.0), group, counts[me], received))
    b.output("gathered", b.all_gather("rows", b.scale(y, 1.0), group, [4, 5]))
    b.output("told", b.broadcast("tell", b.scale(z, 1.0), group))
    b.output("summed", b.all_reduce("sum", b.scale(z, 1.0), group))
    executor = CudaExecutor(b, backend, context, degree=2)
    values = [np.random.default_rng(rank).standard_normal(1001, dtype=np.float32) for rank in range(2)]
    for run in range(5):
        sent = np.concatenate([block(me, peer, counts[me][peer]) for peer in range(2)]) + run
        out = executor.run({"x": sent, "y": np.full((4 + me, 8), me + run, np.float32), "z": values[me]})
        wanted = np.concatenate([block(peer, me, counts[peer][me]) for peer in range(2)]) + run
        np.testing.assert_array_equal(out["exchanged"], wanted)
        np.testing.assert_array_equal(out["gathered"][:, 0], [run] * 4 + [1 + run] * 5)
        np.testing.assert_array_equal(out["told"], values[0])
        np.testing.assert_array_equal(out["summed"], values[0] + values[1])
    executor.close()
    return out


def main(backend_name: str, directory: Path) -> None:
    results = {}
    for comm in ("in-graph", "graph-cut"):
        config = ParallelConfig.from_env(backend=backend_name, ulysses_degree=2, comm=comm, timeout_s=60)
        with ParallelContext(config) as context:
            backend = CudaBackend(config.device)
            results[comm] = check_collectives(context, backend)
            retired = getattr(context.group("ulysses"), "retired", "") or "nothing"
            if context.rank == 0:
                write_mini(directory)
            context.group("world").barrier()
            results[comm]["flux"] = run_flux(directory, context)
            print(f"rank {context.rank}: {backend_name}, {comm}, retired: {retired}", flush=True)
    for name, values in results["in-graph"].items():
        np.testing.assert_array_equal(values, results["graph-cut"][name], err_msg=name)
    alone = run_flux(directory, ParallelContext(ParallelConfig()))
    error = np.linalg.norm(results["in-graph"]["flux"] - alone) / np.linalg.norm(alone)
    assert error < 5e-3, f"two ranks on devices against one on the CPU: relative error {error}"
    print(f"all checks passed, FLUX differs from one CPU rank by {error:.1e}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
