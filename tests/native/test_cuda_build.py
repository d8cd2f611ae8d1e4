"""The CUDA sources compile for sm_90 wherever nvcc is, and the extension imports where there is no device."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from edgedit.graph.cuda_plan import OPERATORS

ROOT = Path(__file__).resolve().parents[2]
# Where `make cuda` builds, too: what has not changed is not compiled again.
BUILD = ROOT / "build" / "cuda"
SITE = Path(sysconfig.get_path("platlib"))

REPORT = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("edgedit._cuda", sys.argv[1])
cuda = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cuda)  # before ggml: the run path has to lead to it
from ggml import ggml
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
try:
    cuda.Communicator(library="libnowhere.so.2", id=b"0" * 128, rank=0, size=1, device=0, timeout_s=1.0)
    refused = ""
except cuda.DeviceError as error:
    refused = str(error)
print(json.dumps({
    "devices": cuda.device_count(), "why": cuda.why_no_device(), "versions": cuda.versions(),
    "operators": list(cuda.operators), "refused": refused,
    "ggml": len({name for name in mapped if "libggml-base" in name}),
    "linked": [name for name in mapped if "libcuda" in name or "libnccl" in name],
}))
"""


@pytest.fixture(scope="module")
def extension() -> Path:
    """The built extension; compiling takes about a minute of one core."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on the PATH")
    tools = Path(sys.executable).parent
    cmake = shutil.which("cmake", path=str(tools)) or shutil.which("cmake")
    pybind11 = subprocess.run(
        [sys.executable, "-m", "pybind11", "--cmakedir"], capture_output=True, text=True, check=False
    ).stdout.strip()
    if cmake is None or not pybind11:
        pytest.skip("no CMake or no pybind11 beside this Python")
    ninja = shutil.which("ninja", path=str(tools))
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    settings = {
        "EDGEDIT_BUILD_MODULE": "OFF",
        "EDGEDIT_CUDA": "ON",
        "EDGEDIT_CUDA_ARCHITECTURES": "90",
        "Python_EXECUTABLE": sys.executable,
        "pybind11_DIR": pybind11,
    }
    definitions = [f"-D{name}={value}" for name, value in settings.items()]
    if not (BUILD / "CMakeCache.txt").exists():
        run([cmake, "-S", str(ROOT), "-B", str(BUILD), *generator, *definitions])
    else:
        run([cmake, "-S", str(ROOT), "-B", str(BUILD), *definitions])
    run([cmake, "--build", str(BUILD), "--target", "_cuda"])
    (built,) = (BUILD / "csrc" / "cuda").glob("_cuda.*.so")
    return built


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    assert "warning" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(1200)
def test_the_extension_imports_and_says_why_there_is_no_device(extension: Path, tmp_path: Path) -> None:
    # as installed: edgedit/ and ggml/ side by side
    (tmp_path / "edgedit").mkdir()
    (tmp_path / "ggml").symlink_to(SITE / "ggml")
    installed = tmp_path / "edgedit" / extension.name
    shutil.copy(extension, installed)
    done = subprocess.run(
        [sys.executable, "-c", REPORT, str(installed)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert sorted(report["operators"]) == sorted(OPERATORS)
    assert report["versions"][0] >= 12000
    assert report["ggml"] == 1, "ggml is in the process twice"
    assert "NCCL could not be loaded" in report["refused"]
    if not report["devices"]:
        assert report["why"], "no device, and no reason"
        assert not [name for name in report["linked"] if "libnccl" in name or "libcudart" in name]
