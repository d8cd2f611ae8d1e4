"""Ranks that do not all make the same context: joining.py HOW."""

from __future__ import annotations

import sys
import time

from edgedit import ParallelConfig, ParallelContext, kernels
from edgedit.errors import EdgeditError
from edgedit.parallel import joining, shared_memory
from edgedit.parallel.backends.mpi import import_mpi

how = sys.argv[1]
options = {"ulysses_degree": 2, "timeout_s": 1.0}
last = ParallelConfig.from_env(**options).rank == 1
if last and how == "settings":
    options = {"cfg_degree": 2, "timeout_s": 1.0}
if how.startswith("absent"):
    joining._JOIN_S = 6.0
    if last:
        if how == "absent after the start of MPI":
            import_mpi()
        time.sleep(12)
        sys.exit(0)
if how.startswith("kernels"):
    # as on two machines, the second the slower one
    usable = ("portable", "ggml") if last else ("avx2", "portable", "ggml")
    offer = kernels.Offer(usable, usable[0])
    kernels.Offer.here = classmethod(lambda cls, env=None: offer)
    options["kernels"] = "auto" if how == "kernels of the slowest" else "avx2"
    with ParallelContext(ParallelConfig.from_env(**options)) as context:
        print(f"kernels {context.config.kernels}", flush=True)  # one write: ranks share the pipe
elif how == "no shared memory":

    def refuse(*_):
        raise EdgeditError("the ranks cannot share memory: it is full")

    shared_memory.share = refuse
    ParallelContext(ParallelConfig.from_env(backend="shm", **options))
elif how == "no group":
    # the rank that cannot make its group of one axis leaves the others in the middle of making theirs
    make = ParallelContext._make_group

    def make_or_fail(context, axis):
        if last and axis == "cfg":
            raise MemoryError("no memory for a group")
        return make(context, axis)

    ParallelContext._make_group = make_or_fail
    ParallelContext(ParallelConfig.from_env(cfg_degree=2, timeout_s=30.0))
elif how == "many":
    for _ in range(20):
        ParallelContext(ParallelConfig.from_env(**options)).close()
elif how == "open":
    context = ParallelContext(ParallelConfig.from_env(**options))
    context.group("world").barrier()
    if last:
        time.sleep(2)  # rank 0 waits for it on its way out
else:
    ParallelContext(ParallelConfig.from_env(**options)).close()
print("end", flush=True)
