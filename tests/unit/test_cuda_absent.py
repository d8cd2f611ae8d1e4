"""edgedit without its CUDA extension: nothing notices, until somebody asks for a device."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from edgedit.config import DEVICE_BACKENDS, ParallelConfig


@pytest.mark.parametrize("backend", DEVICE_BACKENDS)
def test_a_device_backend_without_the_extension_is_refused_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr("edgedit.config.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=f"'{backend}' needs the extension edgedit._cuda.*make cuda.*legal now: auto, none"
    ):
        ParallelConfig(backend=backend, world_size=2, ulysses_degree=2)


@pytest.mark.parametrize("backend", DEVICE_BACKENDS)
def test_a_device_backend_with_the_extension_runs_in_graph(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setattr("edgedit.config.find_spec", importlib.util.find_spec)
    monkeypatch.setattr("edgedit.config._CUDA_EXTENSION", "json")  # a module that is there
    config = ParallelConfig(backend=backend, world_size=2, ulysses_degree=2)
    assert (config.backend, config.comm) == (backend, "in-graph")


def test_the_package_imports_neither_the_extension_nor_cupy() -> None:
    program = (
        "import sys, edgedit, edgedit.cli, edgedit.parallel.context, edgedit.parallel.joining, edgedit.models.flux\n"
        "print([name for name in sys.modules if name.startswith(('edgedit._cuda', 'cupy'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
