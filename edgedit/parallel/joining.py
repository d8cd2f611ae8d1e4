"""How the ranks of an MPI launch find each other, and how they part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import edgedit
from edgedit import kernels
from edgedit.config import DEVICE_BACKENDS, ParallelConfig
from edgedit.errors import CollectiveError, EdgeditError, in_words
from edgedit.parallel import ending
from edgedit.parallel.backends import mpi
from edgedit.parallel.liveness import PeerMonitor
from edgedit.parallel.mesh import WORLD, Mesh
from edgedit.parallel.monitor import Monitor
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.segment_names import forget_segment_names
from edgedit.parallel.wire import Connection, Meeting, host_identity

_JOIN_S = 60.0  # start-up of other ranks to allow for, however short the timeout of the run is


class Joined:
    """MPI, control channel and exit guard of one context; what `backend` and `kernels` auto stand for."""

    def __init__(self, config: ParallelConfig, mesh: Mesh, close: Callable[[], None]) -> None:
        # Before the ranks have met, a late one cannot be told from an absent one.
        timeout_s = max(_JOIN_S, config.timeout_s)
        with mpi.start_limit(timeout_s):
            self._comm = mpi.world(config)
        self._guard = ending.Guard(Monitor(config.rank, config.world_size))
        try:
            connections, self.kernels = _meet(self._comm, config, timeout_s)
        except EdgeditError:
            ending.finalize_would_hang()
            raise
        forget_segment_names()
        self.monitor = PeerMonitor(mesh, config.rank, connections, config.timeout_s)
        self._guard.watch(self.monitor, close)

        self._config = config
        self._is_auto = config.backend == "auto"  # then groups on one host share memory even where not all ranks do
        try:
            self.backend = self._chosen(config)
        except EdgeditError as error:  # all ranks have found the same
            self.monitor.failed(error, recoverable=True)
            self.let_go()
            raise
        except BaseException as error:
            self.monitor.failed(EdgeditError(self.monitor.describe(None, in_words(error))))
            self.let_go()
            raise

    def make_group(self, axis: str, ranks: Sequence[int]) -> ProcessGroup:
        if self.backend in DEVICE_BACKENDS:
            return self._device_group(axis, ranks)
        on_one_host = self._is_auto and len(ranks) > 1 and self.backend != "shm"
        if self.backend == "shm" or (on_one_host and self._why_apart(axis, ranks) is None):
            from edgedit.parallel.backends.shm import ShmGroup

            return ShmGroup(axis, ranks, self.monitor.rank, self.monitor, self._comm)
        return mpi.MpiGroup(axis, ranks, self.monitor.rank, self.monitor, self._comm)

    def _device_group(self, axis: str, ranks: Sequence[int]) -> ProcessGroup:
        from edgedit.parallel.backends.cuda_ipc import CudaIpcGroup
        from edgedit.parallel.backends.nccl import NcclGroup

        kind = NcclGroup if self.backend == "nccl" else CudaIpcGroup
        place = (axis, ranks, self.monitor.rank, self.monitor, self._comm)
        return kind(*place, device=self._config.device, timeout_s=self._config.timeout_s)

    def _chosen(self, config: ParallelConfig) -> str:
        """What backend auto stands for: shm where a trial shows that all ranks can share memory, else mpi."""
        if config.backend == "mpi" or config.backend in DEVICE_BACKENDS:
            return config.backend
        error = self._why_apart(WORLD, range(config.world_size))
        if error is None:
            return "shm"
        if config.backend == "auto":
            return "mpi"
        raise EdgeditError(f"{self.monitor.prefix()}backend shm: {error}") from None

    def _why_apart(self, name: str, ranks: Sequence[int]) -> EdgeditError | None:
        """Why the ranks of a group cannot share memory, as a trial shows that they make together."""
        from edgedit.parallel.shared_memory import share

        trial = mpi.MpiGroup(name, ranks, self.monitor.rank, self.monitor, self._comm)
        try:
            share(1, trial.rank, lambda data: trial.exchange(data, label="trial of shared memory")).close()
        except CollectiveError:
            raise
        except EdgeditError as error:
            return error
        finally:
            self.monitor.calls_made.pop(name, None)
            trial.close()
        return None

    def progress(self) -> None:
        mpi.progress(self._comm)

    def let_go(self) -> None:
        """Free the channel. After a failure the guard stays, so that an error on its way up still ends all ranks."""
        if self.monitor.failure is None:
            self._guard.release()
        elif not self.monitor.recoverable:
            ending.finalize_would_hang()
        self.monitor.stop()


def _meet(comm: Any, config: ParallelConfig, timeout_s: float) -> tuple[list[Connection], str]:
    """Compare settings with all ranks, connect to them, and agree on a kernel family."""
    settings = [f"edgedit = {edgedit.__version__}", *config.shared_lines()]
    offer = kernels.Offer.here().as_json()
    hellos = mpi.meet(comm, {"settings": settings, "host": host_identity(), "kernels": offer}, timeout_s)
    _compare_settings([hello["settings"] for hello in hellos], config)
    family = _agreed_kernels([hello["kernels"] for hello in hellos], config)
    one_host = len({hello["host"] for hello in hellos}) == 1
    meeting = Meeting(config.rank, one_host)
    return meeting.join(mpi.meet(comm, meeting.card(), timeout_s), timeout_s), family


def _compare_settings(settings: Sequence[Sequence[str]], config: ParallelConfig) -> None:
    for rank, theirs in enumerate(settings):
        for first, second in zip(settings[0], theirs, strict=True):
            if first != second:
                raise EdgeditError(
                    f"[rank {config.rank}/{config.world_size}] the ranks were given different settings: "
                    f"'{first}' on rank 0, '{second}' on rank {rank}"
                )


def _agreed_kernels(offers: Sequence[dict[str, Any]], config: ParallelConfig) -> str:
    try:
        return kernels.agreed(config.kernels, [kernels.Offer(**offer) for offer in offers])
    except EdgeditError as error:
        raise EdgeditError(f"[rank {config.rank}/{config.world_size}] {error}") from None
