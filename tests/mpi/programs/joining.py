"""Ranks that do not all make the same context: joining.py HOW."""

from __future__ import annotations

import sys
import time

from edgedit import ParallelConfig, ParallelContext, kernels
from edgedit.parallel import joining
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
