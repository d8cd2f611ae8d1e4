"""Every collective on every axis of one layout: collectives.py ULYSSES CFG DP."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "unit"))

from collective_checks import check_everything

from edgedit import ParallelConfig, ParallelContext

ulysses, cfg, dp = map(int, sys.argv[1:])
config = ParallelConfig.from_env(ulysses_degree=ulysses, cfg_degree=cfg, dp_degree=dp)
with ParallelContext(config) as context:
    num_groups = check_everything(context)
print(f"rank {context.rank} of {context.world_size}: {num_groups} groups, backend {config.backend}\n", end="")
