"""Memory of ranks with and without text encoders: text_placement.py MODEL WHERE.

Prints, for world rank 0, the anonymous KiB of each rank after a picture.
"""

from __future__ import annotations

import gc
import json
import sys

from edgedit import ParallelConfig, Pipeline


def anonymous_kib() -> int:
    gc.collect()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))


def main() -> None:
    model, where = sys.argv[1:]
    parallel = ParallelConfig.from_env(ulysses_degree=2, text_encoders=where)
    with Pipeline.from_pretrained(model, threads=1, parallel=parallel) as pipeline:
        pipeline("a cat", num_inference_steps=1, height=12, width=20, seed=0)
        found = pipeline.context.group("world").exchange(str(anonymous_kib()).encode())
        if pipeline.context.rank == 0:
            print(json.dumps([int(kib) for kib in found]))


main()
