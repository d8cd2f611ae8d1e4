"""How much memory the weights take on ranks that share them, as the system sees it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from edgedit import _native

# A transformer of 11 million parameters, after one that leaves what a process has once. Anonymous memory only: what is
# mapped from files does not count, nor what malloc keeps for later.
PROGRAM = """
import ctypes, gc, json, sys
from edgedit.models.flux import FluxConfig, FluxNetwork
from edgedit.models.random_flux import RandomCheckpoint
from edgedit.models.tensor_parallel import TensorGroup, share
from edgedit.weights.loader import load

def anonymous():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/smaps_rollup") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

family, dtype = sys.argv[1:]

def weights(heads, rank, size):
    config = FluxConfig(num_layers=heads, num_single_layers=2, num_attention_heads=heads, joint_attention_dim=64,
        attention_head_dim=64, axes_dims_rope=(16, 24, 24), pooled_projection_dim=64)
    network = FluxNetwork(config)
    share(network, TensorGroup("tp", rank, size), dtype)
    return load(network, RandomCheckpoint(network), dtype, kernels=family)

def growth(*place):
    before = anonymous()
    store = weights(4, *place)
    grown = anonymous() - before
    store.close()
    return grown

weights(1, 0, 1).close()
print(json.dumps({"one": growth(0, 1), "two": [growth(rank, 2) for rank in range(2)]}))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no /proc/self/smaps_rollup")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no malloc_trim")
@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
def test_two_ranks_hold_half_of_the_weights_each(dtype):
    words = [sys.executable, "-c", PROGRAM, _native.kernels.best(), dtype]
    result = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    for held in found["two"]:
        assert 0.45 * found["one"] < held < 0.55 * found["one"], found
