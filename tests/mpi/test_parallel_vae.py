"""The autoencoder's rows over processes, through every transport."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launch import check_ok, mpirun
from tiny import write_vae

from edgedit.models.autoencoder_kl import AutoencoderKL

PROGRAM = Path(__file__).parent / "programs" / "parallel_vae.py"


@pytest.mark.parametrize(
    ("backend", "comm"),
    [("shm", "in-graph"), ("mpi", "in-graph"), pytest.param("shm", "graph-cut", marks=pytest.mark.slow)],
)
def test_processes_decode_what_one_does(tmp_path: Path, backend: str, comm: str) -> None:
    config = write_vae(tmp_path / "vae")
    latents = np.random.default_rng(0).standard_normal((1, config["latent_channels"], 5, 4), dtype=np.float32)
    np.save(tmp_path / "latents.npy", latents)
    check_ok(
        mpirun(3, PROGRAM, tmp_path / "vae", tmp_path / "latents.npy", backend, comm, tmp_path / "out.npy")
    )
    expected = AutoencoderKL.from_pretrained(tmp_path / "vae", threads=1).decode(latents)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=0, atol=1e-5)
