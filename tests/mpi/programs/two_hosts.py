"""Latents of the embedded model over ranks on two hosts, to compare with those of one: two_hosts.py DEGREES FILE

DEGREES are fields of ParallelConfig, such as ulysses_degree=2,ring_degree=2. Every rank prints its host and what its
groups are made of; rank 0 writes the latents.
"""

from __future__ import annotations

import json
import socket
import sys

import numpy as np

from edgedit import ParallelConfig, ParallelContext, Pipeline


def main(words: str, target: str) -> None:
    degrees = {name: int(degree) for name, degree in (word.split("=") for word in words.split(","))}
    with ParallelContext(ParallelConfig.from_env(**degrees)) as context:
        pipeline = Pipeline.from_pretrained("embedded", threads=1, parallel=context, progress=False)
        result = pipeline("a red apple", num_inference_steps=2, seed=1, height=48, width=80)
        groups = {axis: type(context.group(axis)).__name__ for axis in ("ulysses", "ring", "kv_gather")}
        report = {"rank": context.rank, "host": socket.gethostname(), "comm": context.config.comm, **groups}
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
        if context.rank == 0:
            np.save(target, result.latents)


if __name__ == "__main__":
    main(*sys.argv[1:])
