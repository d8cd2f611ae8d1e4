"""Kernels onednn, on what oneDNN there is here: against double precision, and ranks against one."""

import os
import subprocess
import sys

import numpy as np
import pytest
from graph_runner import random, run_graph
from kernel_layers import linear_layer, rounded
from test_flux import TOLERANCE, models, on_ranks, request  # noqa: F401  (models is a fixture)

from edgedit import _native
from edgedit.kernels import ONEDNN, Offer, multiplies_bf16
from edgedit.models.flux import FluxTransformer

found, description = _native.kernels.onednn()
pytestmark = pytest.mark.skipif(not found, reason=f"no oneDNN to be used: {description}")

# A process that may have four threads of OpenMP multiplies on one and prints how many threads that has started.
PROGRAM = """
import os
import sys

sys.path[:0] = sys.argv[1:]
from graph_runner import random, run_graph
from kernel_layers import linear_layer

layer, store = linear_layer(random(640, 512), None, "f32", "onednn")
before = len(os.listdir("/proc/self/task"))
run_graph(lambda b, x: layer(b, x), random(1, 600, 512), threads=1, kernels="onednn")
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0"])
@pytest.mark.parametrize(
    ("tokens", "columns", "inner", "threads"),
    [(1, 1, 256, 1), (1, 300, 512, 3), (37, 200, 768, 2), (300, 129, 256, 2), (129, 384, 1280, 1)],
)
def test_linear(dtype, tokens, columns, inner, threads):
    x, weight = random(2, tokens, inner), random(columns, inner, seed=1) / np.float32(inner**0.5)
    bias, gate, residual = (
        random(columns, seed=2),
        random(2, 1, columns, seed=3),
        random(2, tokens, columns, seed=4),
    )
    layer, _store = linear_layer(weight, bias, dtype, ONEDNN)
    parts = 2 if dtype == "f32" else 1

    def build(b, x, gate, residual):
        source = b.split(x, parts, axis=2) if parts > 1 else x
        return layer(b, source, activation="relu", gate=gate, residual=residual)

    result = run_graph(build, x, gate, residual, threads=threads, kernels=ONEDNN, compute_dtype=dtype)
    multiplied = "bf16" if dtype != "f32" and multiplies_bf16(ONEDNN) else "f32"
    a = rounded(x.reshape(-1, inner), multiplied)
    w = rounded(rounded(weight, dtype).astype(np.float32), multiplied)
    expected = residual + gate * np.maximum((a @ w.T).reshape(residual.shape) + bias, 0)
    np.testing.assert_allclose(result, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_with_onednn_equal_generic_nodes(models, size):  # noqa: F811
    directory = models(7, guidance_embeds=True)
    config = FluxTransformer.read_config(directory)
    requests = [request(config), request(config, height=3, width=1, text=2, batch=3)]
    generic = on_ranks(directory, 1, *requests, ops="generic")[0]
    for outputs in on_ranks(directory, size, *requests, kernels=ONEDNN):
        for mine, theirs in zip(outputs, generic, strict=True):
            assert 0 < np.abs(mine - theirs).max() <= TOLERANCE


def test_it_starts_no_threads_of_its_own():
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    words = [sys.executable, "-c", PROGRAM, *sys.path]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"]


def test_offers_say_which_onednn():
    offer = Offer.here()
    assert offer.usable[0] == ONEDNN and offer.onednn == description
    assert offer.onednn.startswith("oneDNN 3.")
