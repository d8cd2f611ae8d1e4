"""``edgedit doctor``: what this installation and this host offer, and what is missing."""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import edgedit
from edgedit import binding, embedded, host, kernels, launcher
from edgedit.errors import EdgeditError
from edgedit.parallel.mpi_library import describe_mpi

REQUIRED = ("ggml-python", "numpy", "pillow", "tokenizers", "tqdm")
OPTIONAL = ("mpi4py", "mpich", "matplotlib", "cupy-cuda12x", "cupy-cuda13x")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """0, or 1 where something that edgedit needs is broken. Under mpirun world rank 0 reports."""
    launch = launcher.detect(os.environ)
    report = examine(launch)
    if launch.rank == 0:
        print(json.dumps(report) if args.json else _as_text(report))
    return 1 if report["problems"] else 0


def examine(launch: launcher.Launch) -> dict[str, Any]:
    """Everything as a dict: ``problems`` is what is required and broken, ``hints`` what could be better."""
    problems: list[str] = []
    hints: list[str] = []
    return {
        "edgedit": edgedit.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "ggml": _ggml(problems, hints),
        "native": _native(problems),
        "kernels": _kernels(problems),
        "cores": host.usable_cores(),
        "topology": str(host.machine()),
        "binding": _binding(launch, problems),
        "threads": host.default_threads(launch.local_world_size),
        "launcher": launch.name,
        "rank": launch.rank,
        "ranks": launch.world_size,
        "ranks_here": launch.local_world_size,
        "mpi": _mpi(launch, problems, hints),
        "shared_memory": _shared_memory(hints),
        "gpus": _gpus(),
        "embedded_model": _embedded_model(problems),
        "packages": _packages(problems),
        "problems": problems,
        "hints": hints,
    }


def _ggml(problems: list[str], hints: list[str]) -> dict[str, Any]:
    try:
        module = importlib.import_module("edgedit.graph._ggml")
    except (EdgeditError, ImportError, OSError) as error:
        problems.append(f"ggml: {error}")
        return {}
    flags = _build_flags(module.lib)
    if flags.get("LLAMAFILE") != "1":
        hints.append(
            "ggml was built without LLAMAFILE, matrix products are slower; reinstall with "
            "CMAKE_ARGS=-DGGML_LLAMAFILE=ON pip install --no-cache-dir --force-reinstall --no-deps "
            "--no-binary ggml-python ggml-python==0.0.45"
        )
    return {"version": module.GGML_VERSION, "build": flags}


def _build_flags(lib: Any) -> dict[str, str]:
    """Features that the CPU backend was compiled with, as it lists them itself."""

    class Feature(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]

    registry = lib.ggml_backend_cpu_reg()
    address = lib.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_get_features")
    if not address:
        return {}
    features = ctypes.CFUNCTYPE(ctypes.POINTER(Feature), ctypes.c_void_p)(address)(registry)
    flags = {}
    index = 0
    while features[index].name:
        flags[features[index].name.decode()] = features[index].value.decode()
        index += 1
    return flags


def _native(problems: list[str]) -> dict[str, Any]:
    try:
        native = importlib.import_module("edgedit._native")
    except ImportError as error:
        problems.append(f"the compiled part of edgedit is missing: {error}")
        return {}
    return {**native.build_info(), "cpu": [name for name, has in native.cpu_features().items() if has]}


def _kernels(problems: list[str]) -> dict[str, Any]:
    """Kernel families that this processor can run, and the one that auto means."""
    try:
        offer = kernels.Offer.here()
    except ImportError:
        return {}  # said of the compiled part
    if refusal := offer.refusal("auto"):
        problems.append(refusal)
    return offer.as_json()


def _mpi(launch: launcher.Launch, problems: list[str], hints: list[str]) -> dict[str, Any]:
    try:
        found = describe_mpi(join=launch.starts_mpi and launch.world_size > 1)
    except EdgeditError as error:
        (problems if launch.world_size > 1 else hints).append(f"no MPI: {error}")
        return {}
    if found.get("ranks", launch.world_size) != launch.world_size:
        problems.append(
            f"{launch.name} started {launch.world_size} ranks but MPI sees {found['ranks']}: "
            "the launcher belongs to another MPI than mpi4py"
        )
    return found


def _shared_memory(hints: list[str]) -> str:
    """Whether ranks of this host can write into each other's buffers (backend shm)."""
    try:
        found = importlib.import_module("edgedit.parallel.shared_memory").probe()
    except ImportError:
        return "no: the compiled part of edgedit is missing"
    if found.startswith("no"):
        hints.append(f"ranks of this host cannot share memory, so they talk through MPI: {found}")
    return found


def _binding(launch: launcher.Launch, problems: list[str]) -> str:
    """The cores that this rank would be kept on."""
    place = launch.local_rank, launch.local_world_size
    try:
        return binding.decide("auto", *place, host.machine(), launcher_bound=host.bound_by_launcher()).text
    except ValueError as error:
        problems.append(f"{binding.ENVIRONMENT}: {error}")
        return ""


def _gpus() -> dict[str, Any]:
    """Devices that the NVIDIA driver sees, or why there are none."""
    if shutil.which("nvidia-smi") is None:
        return {"devices": [], "why": "no NVIDIA driver found (nvidia-smi is not on the path)"}
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"devices": [], "why": f"nvidia-smi failed: {error}"}
    if done.returncode != 0:
        return {"devices": [], "why": f"nvidia-smi failed: {(done.stderr or done.stdout).strip()}"}
    extension = "built" if find_spec("edgedit._cuda") else "not built: make cuda"
    why = f"used with --backend nccl or cuda-ipc; edgedit._cuda is {extension}"
    return {"devices": done.stdout.strip().splitlines(), "why": why}


def _embedded_model(problems: list[str]) -> str:
    index = embedded.path() / "model_index.json"
    if not index.is_file():
        problems.append(f"the embedded model is missing: {index}")
    return str(embedded.path())


def _packages(problems: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in (*REQUIRED, *OPTIONAL):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
            if name in REQUIRED:
                problems.append(f"the package {name} is not installed")
    return found


def _as_text(report: dict[str, Any]) -> str:
    flags = ", ".join(f"{name}={value}" for name, value in report["ggml"].get("build", {}).items())
    mpi, gpus, found = report["mpi"], report["gpus"], report["kernels"]
    packages = (
        f"{name} {found}" if found else f"{name} not installed" for name, found in report["packages"].items()
    )
    rows = {
        "edgedit": report["edgedit"],
        "python": f"{report['python']}, {report['system']}",
        "ggml": f"{report['ggml'].get('version', 'broken')}; built with {flags or 'unknown flags'}",
        "native": ", ".join(f"{name} {value}" for name, value in report["native"].items() if name != "cpu"),
        "cpu": ", ".join(report["native"].get("cpu", [])) or "no known vector extensions",
        "kernels": f"{found['auto']} (of {', '.join(found['usable'])})" if found else "none",
        "onednn": found["onednn"] if found else "none",
        "threads": f"{report['threads']} a rank ({report['cores']} cores, {report['ranks_here']} ranks here)",
        "topology": report["topology"],
        "binding": f"{report['binding']} (rank {report['rank']})",
        "launcher": f"{report['launcher']}, {report['ranks']} ranks",
        "mpi": f"{mpi['library']}, {mpi['flavour']}, mpi4py {mpi['mpi4py']}" if mpi else "none",
        "shm": f"{report['shared_memory']} (segments that ranks of this host share)",
        "comm": "in-graph on the CPU, over shared memory on one host, else MPI; --comm graph-cut is the portable way",
        "gpus": "; ".join(gpus["devices"]) + f" ({gpus['why']})"
        if gpus["devices"]
        else f"none: {gpus['why']}",
        "model": report["embedded_model"],
        "packages": ", ".join(packages),
    }
    lines = [f"{name:<9} {text}" for name, text in rows.items()]
    lines += [f"hint      {hint}" for hint in report["hints"]]
    lines += [f"problem   {problem}" for problem in report["problems"]]
    return "\n".join(lines if report["problems"] else [*lines, "all that edgedit needs is there"])
