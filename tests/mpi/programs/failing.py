"""Ranks that run collectives in a loop until one of them misbehaves.

failing.py LOG_DIR ULYSSESxCFG HOW [OPTION=VALUE ...]: both streams of a rank go to LOG_DIR/RANK.txt, because a launcher
may stop forwarding them once a rank has died.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from edgedit import ParallelConfig, ParallelContext
from edgedit.errors import EdgeditError
from edgedit.parallel import Buffer

STEP_S = 0.02


def gather(context: ParallelContext, axis: str, dtype: type = np.float32, label: str = "hidden") -> None:
    group = context.group(axis)
    send = np.full(1000, group.rank, dtype)
    recv = np.empty(1000 * group.size, dtype)
    group.all_gather(Buffer.of(send), Buffer.of(recv), label=label)


def misbehave(how: str, context: ParallelContext) -> None:
    """What the last rank does at step 3."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "raise":
        raise RuntimeError("out of luck")
    elif how == "memory":
        np.empty(1 << 60, np.uint8)
    elif how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    elif how == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    elif how == "dtype":
        gather(context, "ulysses", np.uint16)
    elif how.startswith("extra on "):
        gather(context, how.removeprefix("extra on "), label="one too many")
    elif how == "slow":
        time.sleep(float(os.environ["SLOW_S"]))
    elif how == "exit":
        sys.exit(3)


def run(how: str, context: ParallelContext) -> None:
    last = context.world_size - 1
    for step in range(6):
        context.note(step=step, phase="denoise")
        if step == 3 and context.rank == last:
            misbehave(how, context)
        if how == "busy" and step == 3:
            if context.rank == last:
                os.kill(os.getpid(), signal.SIGKILL)
            # A native call that does not come back, as a long graph computation looks from Python.
            os.read(os.pipe()[0], 1)
        for axis in ("ulysses", "cfg", "world"):
            gather(context, axis)
        time.sleep(STEP_S)
    if how == "extra at the end" and context.rank == last:
        gather(context, "world", label="one too many")


def main() -> None:
    log_dir, layout, how = sys.argv[1:4]
    ulysses, cfg = map(int, layout.split("x"))
    options = dict(entry.split("=") for entry in sys.argv[4:])
    catch = options.pop("catch", None)
    timeout_s = float(options.pop("timeout_s", 60))
    backend = options.pop("backend", "mpi")
    config = ParallelConfig.from_env(
        ulysses_degree=ulysses,
        cfg_degree=cfg,
        timeout_s=timeout_s,
        backend=backend,
        comm=options.pop("comm", None),
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
        if not catch:
            raise
        print(f"caught {type(error).__name__} after {time.monotonic() - started:.1f} s: {error}", flush=True)
        context.close()
        if catch == "again":
            with ParallelContext(config) as second:
                gather(second, "world")
    print("end", flush=True)


if __name__ == "__main__":
    main()
