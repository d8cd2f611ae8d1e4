"""What the CUDA parts need besides edgedit itself, found when they are asked for; its absence is a clear error."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgedit.errors import EdgeditError

# Which NCCL to load, where it is neither in a pip wheel nor known to the dynamic linker.
NCCL_VARIABLE = "EDGEDIT_NCCL_LIBRARY"


def extension() -> Any:
    """`edgedit._cuda`. Raises EdgeditError where it was not built; it may well find no device."""
    try:
        return importlib.import_module("edgedit._cuda")
    except ImportError as error:
        raise EdgeditError(
            f"CUDA needs the extension edgedit._cuda, which is not here ({error}); build it with nvcc: make cuda"
        ) from error


def usable_extension() -> Any:
    """`edgedit._cuda` with at least one device. Raises EdgeditError saying what is missing."""
    cuda = extension()
    if not cuda.device_count():
        raise EdgeditError(f"no CUDA device can be used: {cuda.why_no_device()}")
    return cuda


def check_usable() -> None:
    """Raise EdgeditError unless everything that a backend of devices needs is here."""
    usable_extension()
    import_cupy()


def nccl_library() -> str:
    """Path or name of the NCCL library: $EDGEDIT_NCCL_LIBRARY, the wheel nvidia-nccl-cu13 or -cu12, or the system's."""
    named = os.environ.get(NCCL_VARIABLE)
    if named:
        return named
    try:
        spec = find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "lib" / "libnccl.so.2"
        if path.exists():
            return str(path)
    return "libnccl.so.2"


def import_cupy() -> tuple[Any, Any]:
    """(cupy, cupy.cuda.nccl). Raises EdgeditError where CuPy, its NCCL or a device is missing."""
    try:
        cupy = importlib.import_module("cupy")
        nccl = importlib.import_module("cupy.cuda.nccl")
    except ImportError as error:
        raise EdgeditError(
            f"backend nccl needs CuPy with NCCL: pip install 'edgedit[cuda13]' or 'edgedit[cuda12]' ({error})"
        ) from error
    if not getattr(nccl, "available", True):
        raise EdgeditError(
            "this CuPy was built without NCCL: pip install 'edgedit[cuda13]' or 'edgedit[cuda12]'"
        )
    try:
        devices = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise EdgeditError(f"backend nccl finds no CUDA device: {error}") from error
    if not devices:
        raise EdgeditError("backend nccl finds no CUDA device")
    return cupy, nccl


def open_peer_channel(
    cuda: Any, rank: int, device: int, slot_nbytes: int, exchange: Callable[[bytes], Sequence[bytes]]
) -> tuple[Any, str]:
    """A cuda-ipc channel between two ranks, tried out before it is trusted: (channel, ""), or (None, why not).

    Both ranks call it together and get a channel or none together. `exchange` hands this rank's bytes to both and
    returns those of both, in group order.
    """
    channel: Any = None
    reason = ""
    try:
        channel = cuda.PeerChannel(rank, device, slot_nbytes)
        handle = channel.handle()
    except cuda.DeviceError as error:
        handle, reason = b"", str(error)
    handles = exchange(handle)
    if all(handles):
        try:
            channel.open(handles[1 - rank])
        except cuda.DeviceError as error:
            reason = str(error)
    # Only if both are open, since the trial of one waits for the other's.
    reasons = [data.decode() for data in exchange(reason.encode())]
    if all(handles) and not any(reasons):
        reasons = [data.decode() for data in exchange(_trial(cuda, channel, device).encode())]
    if all(handles) and not any(reasons):
        return channel, ""
    return None, next(
        (f"rank {number} of the group: {text}" for number, text in enumerate(reasons) if text), ""
    )


def _trial(cuda: Any, channel: Any, device: int) -> str:
    """Why bytes do not arrive as they were sent, or ""."""
    try:
        return str(cuda.try_channel(channel, device))
    except cuda.DeviceError as error:
        return str(error)
