"""What the control groups of this process allow it: time on cores, and memory. A group is bound by those around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def num_cores() -> float | None:
    """Cores whose time the quotas allow, the tightest of all groups; None without a quota."""
    return min(filter(None, map(_quota, _folders("cpu"))), default=None)


def memory_nbytes() -> int | None:
    """Memory that the limits allow, the tightest of all groups; None without a limit."""
    return min(filter(None, map(_limit, _folders("memory"))), default=None)


def _folders(controller: str) -> Iterator[Path]:
    """The group of this process and those around it: of version 2, and of a controller of version 1."""
    for base, own in _hierarchies(controller):
        folder = base / own.lstrip("/")
        yield folder
        yield from (around for around in folder.parents if around.is_relative_to(base))


def _hierarchies(controller: str) -> Iterator[tuple[Path, str]]:
    """Where groups are mounted, and the path of this process's group there; the roots in any case."""
    yield _ROOT, ""
    yield _ROOT / controller, ""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield _ROOT, path
        elif controller in controllers.split(","):
            yield _ROOT / controller, path


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = (
                (folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            )
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _limit(folder: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            return int((folder / name).read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
    return None
