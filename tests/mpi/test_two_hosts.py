"""Ulysses within hosts and a ring or gathers across them, which are network namespaces here: what one rank draws."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from launch import flavour
from two_hosts import NotPermitted, two_hosts

from edgedit import ParallelConfig, Pipeline

PROGRAM = Path(__file__).parent / "programs" / "two_hosts.py"


@pytest.fixture(scope="module")
def alone() -> np.ndarray:
    with Pipeline.from_pretrained(
        "embedded", threads=1, parallel=ParallelConfig(), progress=False
    ) as pipeline:
        return pipeline("a red apple", num_inference_steps=2, seed=1, height=48, width=80).latents


@pytest.mark.parametrize("delay_ms", [0, 2])
@pytest.mark.parametrize("outer", ["ring", "kv_gather"])
def test_hosts_draw_together_what_one_rank_draws(
    tmp_path: Path, alone: np.ndarray, outer: str, delay_ms: int
) -> None:
    if flavour() != "mpich":
        pytest.skip("ranks are placed with options of Hydra, and this mpiexec is another")
    latents = tmp_path / "latents.npy"
    try:
        with two_hosts(delay_ms) as hosts:
            done = hosts.run(4, PROGRAM, f"ulysses_degree=2,{outer}_degree=2", latents)
    except NotPermitted as reason:
        pytest.skip(f"this system makes no such hosts: {reason}")
    assert done.returncode == 0, done.stderr
    ranks = sorted(map(json.loads, done.stdout.splitlines()), key=lambda report: report["rank"])
    assert [rank["host"] for rank in ranks] == ["edgedit-a"] * 2 + ["edgedit-b"] * 2
    assert {rank["ulysses"] for rank in ranks} == {"ShmGroup"}, "ranks of one host share memory"
    assert {rank[outer] for rank in ranks} == {"MpiGroup"}, "ranks of two hosts do not"
    np.testing.assert_allclose(np.load(latents), alone, rtol=0, atol=5e-5 if outer == "ring" else 1e-5)
