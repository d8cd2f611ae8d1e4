"""Ranks that run a graph with collectives again and again until one of them misbehaves.

failing_graph.py LOG_DIR ULYSSESxCFG HOW [OPTION=VALUE ...], as failing.py; a step is one run of the graph.
"""

from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np
from failing import misbehave

from edgedit import ParallelConfig, ParallelContext
from edgedit.errors import EdgeditError
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.executor import Executor

WIDTH = 256


def compiled(context: ParallelContext, extra: bool = False, dtype: str = "f32") -> Executor:
    """A step of a quarter of a second or so: products between exchanges on the ulysses axis."""
    group = context.group("ulysses")
    b = GraphBuilder("steps")
    weight = b.constant("weight", np.eye(WIDTH, dtype=np.float32))
    x = b.input("x", (WIDTH, WIDTH))
    counts = [WIDTH * WIDTH // group.size] * (group.size - 1)
    counts.append(WIDTH * WIDTH - sum(counts))
    for layer in range(8 + extra):
        for _ in range(12):
            x = b.matmul(x, weight)
        with b.scope(f"layer{layer}"):
            sums = b.all_reduce("hidden", b.cast(b.scale(x, 1.0 / group.size), dtype), group)
        x = b.scale(b.cast(sums, "f32"), 1.0)
    b.output("y", x)
    return Executor(b, CpuBackend(1), context, degree=group.size)


def later(how: str, context: ParallelContext) -> None:
    """Misbehave from another thread while the main one is inside ggml."""
    threading.Timer(0.02, misbehave, (how, context)).start()


def run(how: str, context: ParallelContext) -> None:
    last = context.rank == context.world_size - 1
    executor = compiled(
        context, extra=how == "longer plan" and last, dtype="bf16" if how == "other type" and last else "f32"
    )
    x = np.ones((WIDTH, WIDTH), np.float32)
    for step in range(6 + (how == "one run more" and last)):
        context.note(step=step, phase="denoise")
        if step == 3 and last:
            if how in ("kill", "interrupt", "terminate", "stop"):
                later(how, context)
            elif how not in ("one run more", "longer plan"):
                misbehave(how, context)
        if how == "wait for signal" and step == 3 and last:
            time.sleep(30)  # the others are blocked in the exchange meanwhile
        executor.run({"x": x})
    executor.close()


def main() -> None:
    log_dir, layout, how = sys.argv[1:4]
    ulysses, cfg = map(int, layout.split("x"))
    options = dict(entry.split("=") for entry in sys.argv[4:])
    timeout_s = float(options.pop("timeout_s", 60))
    config = ParallelConfig.from_env(
        ulysses_degree=ulysses,
        cfg_degree=cfg,
        timeout_s=timeout_s,
        comm="in-graph",
        backend=options.pop("backend"),
    )
    log = os.open(f"{log_dir}/{config.rank}.txt", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    context = ParallelContext(config)
    print(f"pid {os.getpid()}", flush=True)
    started = time.monotonic()
    try:
        run(how, context)
        context.close()
    except EdgeditError as error:
        print(f"failed with {type(error).__name__} after {time.monotonic() - started:.1f} s", flush=True)
        raise
    print("end", flush=True)


if __name__ == "__main__":
    main()
