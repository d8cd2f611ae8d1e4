"""Memory of a loaded and run transformer: what the plan foretells, what ggml takes, and what the system sees."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from edgedit import _native
from edgedit.config import ParallelConfig
from edgedit.models.random_flux import SIZES, random_request, random_transformer
from edgedit.parallel.context import ParallelContext

FAMILIES = (*_native.kernels.families(), "ggml")
# 4 million parameters, 4224 tokens; after a warm-up that leaves what a process has once. Memory that malloc keeps for
# later, mostly of the random numbers, does not count.
PROGRAM = """
import ctypes, gc, json, sys
from edgedit.config import ParallelConfig
from edgedit.models import random_flux
from edgedit.models.random_flux import SIZES, Size, random_request, random_transformer
from edgedit.parallel.context import ParallelContext

def anonymous():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

SIZES["small"] = Size(random_flux._config(1, 1, 2, **random_flux._SMALL_TEXT), 64, 64, 128)
family, dtype = sys.argv[1:]

def run(name):
    model = random_transformer(name, dtype, 2, ParallelContext(ParallelConfig(kernels=family)))
    model(**random_request(name))
    return model

run("tiny").close()
before = anonymous()
model = run("small")
executors = model._executors.values()
print(json.dumps({
    "growth": anonymous() - before,
    "weights": model.weights.nbytes,
    "activations": sum(executor.schedule.buffer_nbytes for executor in executors),
    "inputs": sum(executor._builder.leaf_nbytes for executor in executors),
}))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no /proc/self/smaps_rollup")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no malloc_trim")
@pytest.mark.parametrize(
    ("family", "dtype"), [(_native.kernels.best(), "f32"), (_native.kernels.best(), "q8_0"), ("ggml", "f32")]
)
def test_a_transformer_takes_its_weights_once_and_the_activations_foretold(family, dtype):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, family, dtype], capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["growth"] <= found["weights"] + 1.3 * found["activations"] + found["inputs"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_allocator_takes_what_was_foretold(family, dtype):
    model = random_transformer("tiny", dtype, 1, ParallelContext(ParallelConfig(kernels=family)))
    rows, columns, text = SIZES["tiny"].rows, SIZES["tiny"].columns, SIZES["tiny"].text_tokens
    model(**random_request("tiny"))
    model.prepare(3, rows * columns + 1, text - 3)
    for executor in model._executors.values():
        assert executor.compute_nbytes == pytest.approx(executor.schedule.buffer_nbytes, rel=0.1), columns
    model.close()
