"""Which launcher started this process, and as which rank: told from environment variables alone.

An MPI launcher inside a Slurm allocation wins over Slurm: its ranks are the ranks. Slurm counts only inside a step
(`srun`): an sbatch script also carries SLURM_PROCID, although it launched nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """One process of a launch. `name`: openmpi, mvapich, mpich, slurm, torchrun or none."""

    name: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def starts_mpi(self) -> bool:
        """Whether this launcher wires the ranks up for MPI (torchrun does not)."""
        return self.name not in ("none", "torchrun")


@dataclass(frozen=True)
class _Variables:
    """The variables of one launcher; the first one set of each tuple counts."""

    name: str
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_world_size: tuple[str, ...]


_OPENMPI = _Variables(
    "openmpi",
    ("OMPI_COMM_WORLD_RANK",),
    ("OMPI_COMM_WORLD_SIZE",),
    ("OMPI_COMM_WORLD_LOCAL_RANK",),
    ("OMPI_COMM_WORLD_LOCAL_SIZE",),
)
_MVAPICH = _Variables(
    "mvapich",
    ("MV2_COMM_WORLD_RANK", "MVP_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MVP_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_LOCAL_SIZE", "MVP_COMM_WORLD_LOCAL_SIZE"),
)
# MPICH, MVAPICH 4, Intel MPI and every other launcher that speaks PMI (`srun --mpi=pmi2` among them).
_MPICH = _Variables("mpich", ("PMI_RANK",), ("PMI_SIZE",), ("MPI_LOCALRANKID",), ("MPI_LOCALNRANKS",))
_SLURM = _Variables(
    "slurm",
    ("SLURM_PROCID",),
    ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    ("SLURM_LOCALID",),
    (),
)
_TORCHRUN = _Variables("torchrun", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",))

_SLURM_STEP = ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS")


def detect(env: Mapping[str, str]) -> Launch:
    """Tell the launcher from `env` (normally `os.environ`).

    Raises `ValueError` naming variable and value where a launcher's variables are no numbers or contradict each other.
    """
    found = [_read(variables, env) for variables in (_OPENMPI, _MVAPICH, _MPICH) if _present(variables, env)]
    if found:
        first = found[0]
        for other in found[1:]:
            if (other.rank, other.world_size) != (first.rank, first.world_size):
                raise ValueError(
                    f"two MPI launchers claim this process: {first.name} as rank {first.rank} of {first.world_size}, "
                    f"{other.name} as rank {other.rank} of {other.world_size}; start one from outside the other"
                )
        return first
    if _present(_SLURM, env) and any(name in env for name in _SLURM_STEP):
        return _read(_SLURM, env)
    if _present(_TORCHRUN, env):
        return _read(_TORCHRUN, env)
    return Launch("none")


def device_index(local_rank: int, env: Mapping[str, str]) -> int:
    """The device of a local rank, as an index among the devices it can see.

    A launcher that narrows CUDA_VISIBLE_DEVICES to one device per rank leaves device 0 as the right one. More local
    ranks than visible devices share them in turn.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return local_rank
    devices = [entry for entry in visible.split(",") if entry.strip()]
    return local_rank % len(devices) if devices else 0


def _present(variables: _Variables, env: Mapping[str, str]) -> bool:
    ranks = [name for name in variables.rank if name in env]
    sizes = [name for name in variables.world_size if name in env]
    if bool(ranks) != bool(sizes) and variables not in (_SLURM, _TORCHRUN):
        name = (ranks + sizes)[0]
        missing = (variables.world_size if ranks else variables.rank)[0]
        raise ValueError(f"{name}={env[name]} is set but {missing} is not: that is half a launch")
    return bool(ranks and sizes)


def _read(variables: _Variables, env: Mapping[str, str]) -> Launch:
    rank_name, rank = _integer(variables.rank, env)
    size_name, world_size = _integer(variables.world_size, env)
    if world_size < 1:
        raise ValueError(f"{size_name}={world_size}: a launch has at least 1 rank")
    if not 0 <= rank < world_size:
        raise ValueError(
            f"{rank_name}={rank} is no rank of {size_name}={world_size}; legal: 0 to {world_size - 1}"
        )

    # A launcher that says nothing of hosts is taken to have used one.
    local_name, local_rank = _integer(variables.local_rank, env, default=rank)
    local_size_name, local_world_size = _integer(variables.local_world_size, env, default=world_size)
    if variables is _SLURM:
        local_size_name, local_world_size = "SLURM_STEP_TASKS_PER_NODE", _slurm_tasks_here(env) or world_size
    if not 1 <= local_world_size <= world_size:
        raise ValueError(f"{local_size_name}={local_world_size} does not fit {size_name}={world_size}")
    if not 0 <= local_rank < local_world_size:
        raise ValueError(f"{local_name}={local_rank} is no rank among the {local_world_size} of this host")
    return Launch(variables.name, rank, world_size, local_rank, local_world_size)


def _integer(names: tuple[str, ...], env: Mapping[str, str], default: int | None = None) -> tuple[str, int]:
    for name in names:
        if name in env:
            try:
                return name, int(env[name])
            except ValueError:
                raise ValueError(f"{name}={env[name]!r} is not an integer") from None
    assert default is not None, f"none of {names} is set"
    return names[0] if names else "", default


def _slurm_tasks_here(env: Mapping[str, str]) -> int | None:
    """Ranks on this node from Slurm's run-length list, e.g. "2(x3),1": three nodes of two tasks, one of one."""
    listed = env.get("SLURM_STEP_TASKS_PER_NODE")
    if listed is None:
        return None
    counts: list[int] = []
    for entry in listed.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", entry)
        if match is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={listed!r} is not a list like '2(x3),1'")
        counts += [int(match.group(1))] * int(match.group(2) or 1)
    _, node = _integer(("SLURM_NODEID",), env, default=0)
    if not 0 <= node < len(counts):
        raise ValueError(
            f"SLURM_NODEID={node} is not among the {len(counts)} nodes of SLURM_STEP_TASKS_PER_NODE={listed!r}"
        )
    return counts[node]
