"""What ParallelConfig takes, refuses and resolves."""

from __future__ import annotations

import dataclasses

import pytest

from edgedit.config import ParallelConfig, check_heads, check_supported, legal_ulysses_degrees
from edgedit.degrees import sequence_degrees


def refusal(**options) -> str:
    with pytest.raises(ValueError) as refused:
        ParallelConfig(**options)
    return str(refused.value)


def test_one_rank_needs_no_settings() -> None:
    config = ParallelConfig()
    assert (config.backend, config.comm, config.ops) == ("none", "graph-cut", "fused")
    assert config.axes == {"tp": 1, "ulysses": 1, "ring": 1, "kv_gather": 1, "cfg": 1, "dp": 1}


def test_the_degrees_fill_the_world() -> None:
    config = ParallelConfig(cfg_degree=2, ulysses_degree=3, world_size=6, rank=5)
    # auto until the ranks have met: only then it shows whether they can share memory
    assert (config.backend, config.comm) == ("auto", "in-graph")
    assert list(config.axes) == ["tp", "ulysses", "ring", "kv_gather", "cfg", "dp"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.rank = 0  # type: ignore[misc]


def test_a_product_that_is_not_the_world_is_shown() -> None:
    message = refusal(cfg_degree=2, ulysses_degree=3, world_size=4)
    assert "cfg 2 x ulysses 3 = 6 ranks, but the world has 4" in message
    assert "--cfg 2 --ulysses 2, --ulysses 4" in message
    assert "mpirun -n 2" in refusal(ulysses_degree=2)


@pytest.mark.parametrize(
    ("world_size", "choices"),
    [
        (2, "--cfg 2, --ulysses 2, --kv-gather 2, --ring 2, --tp 2, --dp 2"),
        (3, "--ulysses 3, --kv-gather 3, --ring 3, --tp 3, --dp 3"),
        (4, "--cfg 2 --ulysses 2, --ulysses 4, --kv-gather 4, --ring 4, --tp 4, --dp 4"),
    ],
)
def test_a_launch_without_degrees_is_told_the_choices(world_size: int, choices: str) -> None:
    message = refusal(world_size=world_size)
    assert f"{world_size} ranks were launched but no degrees are given" in message
    assert message.endswith(f"choose: {choices}")


def test_ring_and_kv_gather_are_alternatives() -> None:
    message = refusal(ring_degree=2, kv_gather_degree=2, ulysses_degree=2, world_size=8)
    assert "ring_degree 2 and kv_gather_degree 2" in message
    assert "--ring 4 --ulysses 2 or --kv-gather 4 --ulysses 2" in message
    assert ParallelConfig(ring_degree=2, ulysses_degree=2, world_size=4).axes["ring"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ulysses_degree": 0}, ["ulysses_degree is 0", "at least 1"]),
        ({"cfg_degree": -2}, ["cfg_degree is -2"]),
        ({"dp_degree": 1.5}, ["dp_degree is 1.5"]),
        ({"tp_degree": True}, ["tp_degree is True"]),
        ({"vae_degree": 2}, ["vae_degree is 2", "at most 1"]),
        ({"rank": 1}, ["rank 1", "world_size 1"]),
        ({"rank": -1}, ["rank is -1"]),
        ({"backend": "gloo"}, ["'gloo'", "auto, none, local, mpi, shm, nccl, cuda-ipc"]),
        ({"comm": "host"}, ["'host'", "auto, graph-cut, in-graph"]),
        ({"ops": "fast"}, ["'fast'", "auto, fused, generic"]),
        ({"wire_dtype": "f8"}, ["'f8'", "auto, f32, f16, bf16"]),
        ({"timeout_s": 0}, ["timeout_s is 0", "above 0"]),
        ({"timeout_s": float("nan")}, ["timeout_s is nan"]),
        ({"timeout_s": "60"}, ["timeout_s is '60'"]),
        ({"backend": "none", "ulysses_degree": 2, "world_size": 2}, ["backend none", "2"]),
        ({"backend": "local", "comm": "in-graph"}, ["backend local", "graph-cut"]),
    ],
)
def test_bad_values_are_refused_with_what_is_legal(options: dict, words: list[str]) -> None:
    message = refusal(**options)
    for word in words:
        assert word in message


def test_the_environment_gives_rank_world_and_device() -> None:
    env = {
        "PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "CUDA_VISIBLE_DEVICES": "6",
    }  # fmt: skip
    config = ParallelConfig.from_env(env, cfg_degree=2, ulysses_degree=2, timeout_s=None)
    assert (config.rank, config.world_size, config.local_rank, config.local_world_size) == (3, 4, 1, 2)
    assert config.device == 0
    assert config.timeout_s == 60


def test_a_launcher_that_starts_no_mpi_is_refused_with_the_reason() -> None:
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    with pytest.raises(ValueError, match=r"torchrun started 2 processes without MPI.*mpirun -n 2"):
        ParallelConfig.from_env(env, ulysses_degree=2)
    assert ParallelConfig.from_env({**env, "WORLD_SIZE": "1"}).world_size == 1


def test_a_plan_has_the_world_that_its_degrees_need() -> None:
    config = ParallelConfig.for_plan(cfg_degree=2, ulysses_degree=4, rank=7)
    assert (config.world_size, config.rank) == (8, 7)
    with pytest.raises(ValueError, match="cfg_degree is 0"):
        ParallelConfig.for_plan(cfg_degree=0)


def test_ranks_share_every_setting_but_their_place() -> None:
    first = ParallelConfig(ulysses_degree=2, world_size=2, rank=0)
    second = ParallelConfig(ulysses_degree=2, world_size=2, rank=1, local_rank=0, device=1)
    other = ParallelConfig(ulysses_degree=2, world_size=2, timeout_s=5)
    assert first.shared_lines() == second.shared_lines()
    assert set(other.shared_lines()) - set(first.shared_lines()) == {"timeout_s = 5"}


def test_axes_that_a_model_does_not_use_are_refused_by_name() -> None:
    check_supported(ParallelConfig(cfg_degree=2, ulysses_degree=2, world_size=4), ("cfg", "ulysses"), "flux")
    for axis in ("tp", "ring", "kv_gather", "dp"):
        config = ParallelConfig.for_plan(**{f"{axis}_degree": 2})
        with pytest.raises(ValueError, match=rf"{axis}_degree 2 is not supported yet by this model \(flux\)"):
            check_supported(config, ("cfg", "ulysses"), "flux")
    with pytest.raises(ValueError, match="vae_degree 2 is not supported yet"):
        check_supported(ParallelConfig.for_plan(ulysses_degree=2, vae_degree=2), ("cfg", "ulysses"), "flux")


@pytest.mark.parametrize(("num_heads", "ulysses"), [(12, 12), (30, 4), (2, 2), (7, 5)])
def test_uneven_shares_of_heads_are_legal(num_heads: int, ulysses: int) -> None:
    check_heads(num_heads, ParallelConfig.for_plan(ulysses_degree=ulysses), "flux")


def test_more_ulysses_ranks_than_heads_are_told_degrees_and_alternatives() -> None:
    with pytest.raises(ValueError) as refused:
        check_heads(2, ParallelConfig.for_plan(ulysses_degree=4), "flux")
    for words in ("ulysses_degree 4", "2 heads", "1 to 2", "--cfg 2 --ulysses 2 on the same 4 ranks"):
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("heads", "degrees", "alternatives"),
    [
        (2, {"ulysses": 4}, "--ring 2 --ulysses 2 on the same 4 ranks, --kv-gather 4 on the same 4 ranks"),
        (6, {"ulysses": 8, "cfg": 2}, "--cfg 2 --ring 2 --ulysses 4 on the same 16 ranks"),
        (6, {"ulysses": 8, "cfg": 2}, "--cfg 2 --ulysses 6 on 12 ranks"),
        (4, {"ulysses": 5}, "--ring 5 on the same 5 ranks, --kv-gather 5 on the same 5 ranks, --ulysses 4 on 4"),
        (4, {"ulysses": 6, "kv_gather": 2}, "--kv-gather 4 --ulysses 3 on the same 12 ranks"),
        (6, {"ulysses": 4, "tp": 2}, "--ring 2 --ulysses 2 --tp 2 on the same 8 ranks"),
    ],
)
def test_alternatives_to_too_many_ulysses_ranks_are_whole_commands(heads, degrees, alternatives) -> None:
    config = ParallelConfig.for_plan(**{f"{axis}_degree": degree for axis, degree in degrees.items()})
    with pytest.raises(ValueError) as refused:
        check_heads(heads, config, "flux")
    assert alternatives in str(refused.value)


@pytest.mark.parametrize(
    ("ranks", "heads", "degrees"),
    [
        (1, 4, {"ulysses": 1, "ring": 1}),
        (2, 24, {"kv_gather": 2}),
        (4, 24, {"ulysses": 4, "ring": 1}),
        (6, 4, {"ulysses": 3, "ring": 2}),
        (7, 4, {"ulysses": 1, "ring": 7}),
        (48, 24, {"ulysses": 24, "ring": 2}),
    ],
)
def test_ranks_that_share_the_sequence_somehow(ranks: int, heads: int, degrees: dict[str, int]) -> None:
    assert sequence_degrees(ranks, heads) == degrees


def test_tensor_parallel_ranks_share_the_heads_first() -> None:
    assert list(legal_ulysses_degrees(12, ParallelConfig.for_plan(tp_degree=4))) == [1, 2, 3]
