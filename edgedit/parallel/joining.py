"""How the ranks of an MPI launch find each other, and how they part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import edgedit
from edgedit.config import ParallelConfig
from edgedit.errors import EdgeditError
from edgedit.parallel import ending
from edgedit.parallel.backends import mpi
from edgedit.parallel.liveness import PeerMonitor
from edgedit.parallel.mesh import Mesh
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.wire import Meeting


class Joined:
    """MPI, control channel and exit guard of one context."""

    def __init__(self, config: ParallelConfig, mesh: Mesh, close: Callable[[], None]) -> None:
        self._comm = mpi.world(config)
        one_host = config.local_world_size == config.world_size
        meeting = Meeting(config.rank, one_host)
        settings = [f"edgedit = {edgedit.__version__}", *config.shared_lines()]
        hellos = mpi.meet(self._comm, {"card": meeting.card(), "settings": settings}, config.timeout_s)
        _compare_settings([hello["settings"] for hello in hellos], config)
        connections = meeting.join([hello["card"] for hello in hellos], config.timeout_s)
        self.monitor = PeerMonitor(mesh, config.rank, connections, config.timeout_s)
        self._guard = ending.Guard(self.monitor, close)

    def make_group(self, axis: str, ranks: Sequence[int]) -> ProcessGroup:
        return mpi.MpiGroup(axis, ranks, self.monitor.rank, self.monitor, self._comm)

    def progress(self) -> None:
        mpi.progress(self._comm)

    def let_go(self) -> None:
        """Free the channel. After a failure the guard stays, so that an error on its way up still ends all ranks."""
        if self.monitor.failure is None:
            self._guard.release()
        elif not self.monitor.recoverable:
            ending.finalize_would_hang()
        self.monitor.stop()


def _compare_settings(settings: Sequence[Sequence[str]], config: ParallelConfig) -> None:
    for rank, theirs in enumerate(settings):
        for first, second in zip(settings[0], theirs, strict=True):
            if first != second:
                raise EdgeditError(
                    f"[rank {config.rank}/{config.world_size}] the ranks were given different settings: "
                    f"'{first}' on rank 0, '{second}' on rank {rank}"
                )
