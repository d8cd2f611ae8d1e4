"""Which MPI library mpi4py finds here, for reports."""

from __future__ import annotations

from typing import Any

from edgedit.errors import EdgeditError
from edgedit.parallel.backends.mpi import import_mpi


def describe_mpi(join: bool) -> dict[str, Any]:
    """Name and versions of the MPI library; with ``join`` also the ranks that it sees.

    Without ``join`` MPI is not started, so that it can be asked outside of any launch. Raises EdgeditError
    where there is no mpi4py or no library.
    """
    try:
        import mpi4py
    except ImportError as error:
        raise EdgeditError(f"mpi4py is not installed: pip install 'edgedit[mpi]' ({error})") from error
    mpi4py.rc.initialize = join
    mpi = import_mpi()
    found = {
        "library": " ".join(mpi.Get_library_version().strip("\0").splitlines()[0].split()),
        "flavour": mpi.get_vendor()[0],
        "mpi4py": mpi4py.__version__,
    }
    if mpi.Is_initialized():
        found["ranks"] = mpi.COMM_WORLD.size
    return found
