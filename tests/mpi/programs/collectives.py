"""Every collective on every axis of one layout: collectives.py BACKEND ULYSSES CFG DP [PIECE].

PIECE: the most elements that one MPI message takes, to see long messages cut without having long messages.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))

from collective_checks import check_everything

from edgedit import ParallelConfig, ParallelContext
from edgedit.parallel.backends import mpi

backend = sys.argv[1]
ulysses, cfg, dp, *piece = map(int, sys.argv[2:])
if piece:
    mpi._PIECE_COUNT = piece[0]
config = ParallelConfig.from_env(ulysses_degree=ulysses, cfg_degree=cfg, dp_degree=dp, backend=backend)
with ParallelContext(config) as context:
    num_groups = check_everything(context)
print(
    f"rank {context.rank} of {context.world_size}: {num_groups} groups, backend {context.config.backend}\n",
    end="",
)
