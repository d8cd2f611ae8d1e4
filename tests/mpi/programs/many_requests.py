"""Short requests of three alternating shapes, and what they leave behind: many_requests.py MODEL REQUESTS BACKEND
AXIS [RESIDENCY].

Prints, for world rank 0, resident KiB, open files, mappings of shared memory and buffers taken, after a warm-up and at
the end.
"""

from __future__ import annotations

import os
import re
import sys

import numpy as np

from edgedit import FluxTransformer, ParallelConfig, ParallelContext
from edgedit.graph.counters import COUNTERS

WARM_UP = 60


def footprint() -> list[int]:
    with open("/proc/self/status") as status:
        resident = int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])
    with open("/proc/self/maps") as maps:
        shared = sum("edgedit" in line for line in maps)
    return [resident, len(os.listdir("/proc/self/fd")), shared, COUNTERS.buffers_allocated]


def request(model: FluxTransformer, rows: int, columns: int, text: int) -> dict[str, np.ndarray]:
    config = model.config
    rng = np.random.default_rng(rows)
    row, column = np.indices((rows, columns)).reshape(2, -1)
    return {
        "hidden_states": rng.standard_normal((1, rows * columns, config.in_channels), dtype=np.float32),
        "encoder_hidden_states": rng.standard_normal((1, text, config.joint_attention_dim), dtype=np.float32),
        "pooled_projections": rng.standard_normal((1, config.pooled_projection_dim), dtype=np.float32),
        "timestep": np.array([0.5], np.float32),
        "img_ids": np.stack([np.zeros_like(row), row, column], 1),
        "txt_ids": np.zeros((text, 3), np.float32),
    }


def main() -> None:
    model_path, requests, backend, axis, *residency = sys.argv[1], int(sys.argv[2]), *sys.argv[3:]
    options = {f"{axis}_degree": 2, "backend": backend, "weight_residency": (residency or ["whole"])[0]}
    with ParallelContext(ParallelConfig.from_env(comm="in-graph", **options)) as context:
        model = FluxTransformer.from_pretrained(f"{model_path}/transformer", threads=1, parallel=context)
        shapes = [request(model, *shape) for shape in ((4, 4, 5), (6, 4, 9), (5, 3, 5))]
        fresh = [model(**inputs) for inputs in shapes]
        for number in range(requests):
            # Every tenth shape is new: a compiled graph comes, and the least recently used one goes.
            inputs = request(model, 3, 4 + number // 10 % 12, 5) if number % 10 == 0 else shapes[number % 3]
            result = model(**inputs)
            if number % 10:
                assert result.tobytes() == fresh[number % 3].tobytes(), (
                    f"request {number} differs from a fresh one"
                )
            if number + 1 in (WARM_UP, requests) and context.rank == 0:
                print(*footprint(), flush=True)
        model.close()


if __name__ == "__main__":
    main()
