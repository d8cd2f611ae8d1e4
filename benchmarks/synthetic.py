"""Writes a checkpoint of a published model's true size with random weights, to load and run without the real ones.

    python benchmarks/synthetic.py flux-schnell --type q4_k -o flux-schnell-q4_k.gguf
    python benchmarks/synthetic.py t5-xxl --type f16 -o t5-xxl-f16.safetensors

Shapes are those of the networks here; tensors have the names under which such files are published. Memory stays at a
piece of one tensor. See random_values.py for what the values are.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors_file
from random_values import TYPES, pieces

from edgedit import presets
from edgedit.models.architectures import transformer_class
from edgedit.models.module import Module
from edgedit.models.t5 import T5Config, T5EncoderModel
from edgedit.weights import gguf_writer
from edgedit.weights.name_map import architecture
from edgedit.weights.quantisation import PLAIN, choose_type

T5_XXL = T5Config(
    d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu"
)  # of google/t5-v1_1-xxl, which FLUX and Stable Diffusion 3 read prompts with
MODELS = (*presets.names(), "t5-xxl")
SPREAD = 0.1  # of biases, and of norms around 1


@dataclass(frozen=True)
class Tensor:
    """One tensor of the file: mean and deviation of its values."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    mean: float
    deviation: float

    @property
    def planned(self) -> gguf_writer.PlannedTensor:
        return gguf_writer.PlannedTensor(self.name, self.shape, self.dtype)

    def pieces(self) -> Iterator[np.ndarray]:
        return pieces(self.name, math.prod(self.shape), self.dtype, self.mean, self.deviation)


def network_of(model: str) -> tuple[str, str, Module]:
    """The architecture's name, that of its published spelling, and the network without weights."""
    if model == "t5-xxl":
        return "t5", "llama.cpp", T5EncoderModel.build_network(T5_XXL)
    config = presets.read(model)["transformer"]
    transformer = transformer_class(config)
    name = "sd3" if config["_class_name"] == "SD3Transformer2DModel" else "flux"
    return name, "original", transformer.build_network(transformer.config_class.from_dict(config))


def tensors_of(name: str, spelling: str, network: Module, dtype: str) -> list[Tensor]:
    """What a file of that network holds, matrices in `dtype` where their rows fill its blocks."""
    parameters = dict(network.named_parameters())
    spelt = architecture(name).spelling(spelling)
    sources = spelt.bind(parameters).sources(parameters)
    held = {target.name for targets in sources.values() for target in targets}
    assert held == set(parameters), f"{sorted(set(parameters) - held)[:3]} have no name in {spelling}"
    found = []
    for source, targets in sources.items():
        parts = [parameters[target.name] for target in targets]
        shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
        if targets[0].transpose:
            shape = shape[::-1]
        is_norm = parts[0].role == "norm" and not source.endswith("bias")
        fan_in = 1 if parts[0].role == "embedding" else math.prod(shape[1:])
        deviation = SPREAD if len(shape) == 1 else 1 / math.sqrt(fan_in)
        chosen = choose_type(source, shape, {"F32"}, dtype, ())
        found.append(Tensor(source, shape, chosen, float(is_norm), deviation))
    return found


def write(path: Path, name: str, tensors: list[Tensor]) -> int:
    """Write beside `path` and rename; returns the bytes. ValueError where the type or the disk does not take it."""
    if path.suffix == ".gguf":
        metadata = {"general.architecture": {"t5": "t5encoder"}.get(name, name)}
        layout = gguf_writer.Layout(metadata, [tensor.planned for tensor in tensors])
        nbytes = layout.nbytes
    else:
        if not all(tensor.dtype in PLAIN for tensor in tensors):
            raise ValueError(f"safetensors holds {', '.join(PLAIN)}; write other types as .gguf")
        spans = {tensor.name: (tensor.dtype.upper(), tensor.shape) for tensor in tensors}
        nbytes = safetensors_file.header(spans)[1]
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if nbytes > free:
        raise ValueError(f"{path} takes {nbytes} bytes; {free} are free")
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            if path.suffix == ".gguf":
                gguf_writer.write(file, layout, (tensor.pieces() for tensor in tensors))
            else:
                safetensors_file.write(
                    file, spans, (piece for tensor in tensors for piece in tensor.pieces())
                )
        assert part.stat().st_size == nbytes, f"{part.stat().st_size} bytes for {nbytes}"
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return nbytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--type", choices=TYPES, default="q4_k", dest="dtype")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a .gguf or .safetensors file")
    options = parser.parse_args()
    if options.output.suffix not in (".gguf", ".safetensors"):
        parser.error(f"{options.output}: the name must end with .gguf or .safetensors")
    name, spelling, network = network_of(options.model)
    tensors = tensors_of(name, spelling, network, options.dtype)
    try:
        nbytes = write(options.output, name, tensors)
    except ValueError as error:
        parser.error(str(error))
    count = sum(math.prod(tensor.shape) for tensor in tensors)
    print(f"{options.output}: {len(tensors)} tensors, {count / 1e9:.2f}e9 weights, {nbytes / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
