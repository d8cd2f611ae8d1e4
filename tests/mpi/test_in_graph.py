"""The ways of running a schedule differ in no bit: cut at its collectives or whole, over MPI or shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import check_ok, mpirun
from tiny import write_flux_pipeline

PROGRAM = Path(__file__).parent / "programs" / "in_graph.py"


def check_all_ways(num_ranks: int, *arguments: object, timeout: float = 120) -> None:
    printed = check_ok(mpirun(num_ranks, PROGRAM, *arguments, timeout=timeout))
    assert printed.count("all ways agree") == num_ranks


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
def test_every_kind_of_collective(num_ranks: int) -> None:
    check_all_ways(num_ranks, "kinds", num_ranks)


def test_attention_with_pauses_around_everything() -> None:
    check_all_ways(3, "attention", 200)


def test_rings_and_gathers_with_pauses_around_everything() -> None:
    check_all_ways(4, "sharing", 30)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_latents_of_the_embedded_model(num_ranks: int) -> None:
    check_all_ways(num_ranks, "latents", "embedded", num_ranks)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_latents_of_a_model_whose_heads_divide_by_nothing(tmp_path: Path, num_ranks: int) -> None:
    model = write_flux_pipeline(tmp_path / "flux", heads=7, t5_length=5, guidance=True)
    check_all_ways(num_ranks, "latents", model, num_ranks)
