"""Every test here starts ranks with mpiexec."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import launch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = None
    if importlib.util.find_spec("mpi4py") is None:
        missing = "mpi4py is not installed"
    elif launch.mpiexec_path() is None:
        missing = "there is no mpiexec"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.mpi)
            if missing:
                item.add_marker(pytest.mark.skip(reason=missing))
