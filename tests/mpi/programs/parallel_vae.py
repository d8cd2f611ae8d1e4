"""Latents decoded by all ranks together: parallel_vae.py DIRECTORY LATENTS.npy BACKEND COMM RESULT.npy."""

from __future__ import annotations

import sys

import numpy as np

from edgedit import ParallelConfig, ParallelContext
from edgedit.models.autoencoder_kl import AutoencoderKL


def main() -> None:
    directory, latents, backend, comm, result = sys.argv[1:]
    ranks = ParallelConfig.from_env(ulysses_degree=3, vae_degree=3, backend=backend, comm=comm)
    with ParallelContext(ranks) as context:
        model = AutoencoderKL.from_pretrained(directory, threads=1, parallel=context)
        decoded = [model.decode(np.load(latents)) for _ in range(2)]
        context.agree("what was decoded", [array.tobytes().hex() for array in decoded])
        if context.rank == 0:
            np.testing.assert_array_equal(*decoded)
            np.save(result, decoded[0])
        model.close()


main()
