"""Loading holds the weights once: nothing of a file but its mapping, and no second copy on the way."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from single_files import original
from tiny_shapes import flux_config, flux_shapes

from edgedit.weights.convert import converted

# Most anonymous memory while a file is loaded, over what there was before, after a warm-up with a small one.
PROGRAM = """
import json, sys, threading
from edgedit.models.flux import FluxTransformer

def anonymous():
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

small, large, dtype = sys.argv[1:]
FluxTransformer.from_pretrained(small, dtype).close()
before, highest, done = anonymous(), 0, threading.Event()

def watch():
    global highest
    while not done.wait(0.001):
        highest = max(highest, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
model = FluxTransformer.from_pretrained(large, dtype)
done.set()
watcher.join()
print(json.dumps({"weights": model.weights.nbytes, "peak": highest - before, "type": model.compute_dtype}))
"""


def flux_tensors(heads):
    """Of one block of each kind, in the original layout: values that repeat, which no memory needs to know."""
    config = flux_config(
        num_attention_heads=heads, attention_head_dim=128, axes_dims_rope=[16, 56, 56], num_layers=1,
        num_single_layers=1,
    )  # fmt: skip
    values = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32).astype(np.float16)
    shapes = flux_shapes(config)
    return original("flux", {key: np.resize(values, math.prod(shape)).reshape(shape) for key, shape in shapes.items()})


def write_q8_0(path, tensors):
    """All matrices quantised by ggml, which is fast."""
    writer = gguf.GGUFWriter(path, "flux")
    for key, values in tensors.items():
        widened = values.astype(np.float32)
        if values.ndim == 2 and values.shape[1] % 32 == 0:
            blocks = converted(widened, "F32", "q8_0", key)
            writer.add_tensor(key, blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(key, widened)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc/self/status")
@pytest.mark.parametrize(("stored", "dtype", "megabytes"), [("Q8_0", "auto", 80), ("F16", "f32", 300)])
def test_a_file_is_loaded_in_little_more_than_its_weights(tmp_path, stored, dtype, megabytes):
    files = []
    for name, heads in (("small", 1), ("large", 10)):
        tensors = flux_tensors(heads)
        if stored == "F16":
            files.append(tmp_path / f"{name}.safetensors")
            save_file(tensors, files[-1])
        else:
            files.append(write_q8_0(tmp_path / f"{name}.gguf", tensors))
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, files), dtype], capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["type"] == ("q8_0" if dtype == "auto" else dtype)
    assert found["weights"] > megabytes << 20
    assert found["peak"] <= 1.15 * found["weights"], found
