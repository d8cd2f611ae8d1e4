"""Which launcher, which rank: from environment variables alone."""

from __future__ import annotations

import pytest

from edgedit.launcher import Launch, detect, device_index

HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_SIZE": "4",
    "MV2_COMM_WORLD_LOCAL_RANK": "0", "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}  # fmt: skip
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("name", "env"),
    [("mpich", HYDRA), ("openmpi", OPENMPI), ("mvapich", MVAPICH), ("slurm", SRUN), ("torchrun", TORCHRUN)],
)
def test_each_launcher_is_told_by_its_own_variables(name: str, env: dict[str, str]) -> None:
    assert detect(env) == Launch(name, rank=2, world_size=4, local_rank=0, local_world_size=2)


def test_no_launcher_is_one_rank() -> None:
    assert detect({"HOME": "/home/me"}) == Launch("none", 0, 1, 0, 1)


def test_mvapich_that_also_speaks_pmi_is_mvapich() -> None:
    assert detect({**MVAPICH, "PMI_RANK": "2", "PMI_SIZE": "4"}).name == "mvapich"


@pytest.mark.parametrize(("name", "mpirun"), [("mpich", HYDRA), ("openmpi", OPENMPI), ("mvapich", MVAPICH)])
def test_mpirun_inside_a_slurm_job_is_the_mpirun(name: str, mpirun: dict[str, str]) -> None:
    # Hydra and Open MPI start one daemon a node with srun, so all ranks of a node carry the daemon's SLURM_PROCID.
    daemon = {**SRUN, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    assert detect({**daemon, **mpirun}) == Launch(name, 2, 4, 0, 2)


def test_a_batch_script_is_not_a_launch() -> None:
    batch = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    assert detect(batch).world_size == 1


def test_a_slurm_step_takes_its_own_size_not_that_of_the_job() -> None:
    step = {**SRUN, "SLURM_NTASKS": "8"}
    assert detect(step).world_size == 4


@pytest.mark.parametrize(("node", "tasks"), [("0", 2), ("2", 2), ("3", 1)])
def test_slurm_lists_of_tasks_per_node_are_unrolled(node: str, tasks: int) -> None:
    env = {
        "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
        "SLURM_NODEID": node, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    }  # fmt: skip
    assert detect(env).local_world_size == tasks


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({**HYDRA, "PMI_RANK": "one"}, ["PMI_RANK", "'one'"]),
        ({**HYDRA, "PMI_RANK": "4"}, ["PMI_RANK=4", "PMI_SIZE=4", "0 to 3"]),
        ({**HYDRA, "PMI_RANK": "-1"}, ["PMI_RANK=-1"]),
        ({**HYDRA, "PMI_SIZE": "0"}, ["PMI_SIZE=0"]),
        ({**HYDRA, "MPI_LOCALNRANKS": "5"}, ["MPI_LOCALNRANKS=5", "PMI_SIZE=4"]),
        ({**HYDRA, "MPI_LOCALRANKID": "2"}, ["MPI_LOCALRANKID=2", "2 of this host"]),
        ({"PMI_RANK": "1"}, ["PMI_RANK=1", "PMI_SIZE"]),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, ["OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK"]),
        (
            {**HYDRA, **OPENMPI, "OMPI_COMM_WORLD_RANK": "1"},
            ["openmpi as rank 1 of 4", "mpich as rank 2 of 4"],
        ),
        ({**SRUN, "SLURM_PROCID": "x"}, ["SLURM_PROCID", "'x'"]),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(3)"}, ["SLURM_STEP_TASKS_PER_NODE", "2(3)"]),
        ({**SRUN, "SLURM_NODEID": "2"}, ["SLURM_NODEID=2", "2 nodes"]),
        ({**TORCHRUN, "WORLD_SIZE": ""}, ["WORLD_SIZE", "''"]),
    ],
)
def test_values_that_make_no_sense_are_named(env: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ValueError) as refused:
        detect(env)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("visible", "local_rank", "device"),
    [(None, 3, 3), ("5", 3, 0), ("0,1,2,3", 3, 3), ("0,1", 3, 1), ("", 3, 0), ("GPU-abc,", 1, 0)],
)
def test_a_rank_takes_a_device_among_those_it_sees(visible: str | None, local_rank: int, device: int) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert device_index(local_rank, env) == device
