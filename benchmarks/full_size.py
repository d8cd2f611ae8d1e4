"""Loads a checkpoint of true size and runs one forward pass on all ranks: time, and peak memory of every rank.

    python benchmarks/synthetic.py flux-schnell --type q4_k -o flux-schnell-q4_k.gguf
    mpiexec -n 2 python benchmarks/full_size.py flux-schnell flux-schnell-q4_k.gguf --ulysses 2 --size 512
    python benchmarks/full_size.py t5-xxl t5-xxl-q8_0.gguf --text-tokens 512

Texts are random vectors, so that no text encoder is needed; t5-xxl itself, on one rank, reads random ids. Peaks are of
anonymous memory: pages of the file, which the system takes back when it needs them, are not counted.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from record import save, versions
from synthetic import MODELS

from edgedit import ParallelConfig, presets
from edgedit.commands.memory import PeakMemory
from edgedit.host import default_threads
from edgedit.models import random_flux, random_sd3
from edgedit.models.architectures import transformer_class
from edgedit.models.flux import FluxTransformer
from edgedit.models.t5 import T5EncoderModel
from edgedit.parallel.context import ParallelContext
from edgedit.weights.sources import open_source

PIXELS_PER_TOKEN = 16  # of all presets: 8 a latent position, 2 x 2 of these a token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("weights", type=Path, help="a GGUF or safetensors file, as synthetic.py writes")
    parser.add_argument(
        "--size", type=int, default=512, help="in pixels, a multiple of 16 (default %(default)s)"
    )
    parser.add_argument("--text-tokens", type=int, default=256, help="default %(default)s")
    parser.add_argument("--steps", type=int, default=1, help="timed after each other (default %(default)s)")
    parser.add_argument("--dtype", default="auto", help="default: as stored")
    parser.add_argument("--quantised-compute", choices=("exact", "int8"), default="exact")
    parser.add_argument("--ulysses", type=int, help="ranks that share the tokens")
    parser.add_argument("--tp", type=int, help="ranks that share the weights")
    parser.add_argument("--output", type=Path, help="of the record; default: in results/")
    options = parser.parse_args()
    config = ParallelConfig.from_env(ulysses_degree=options.ulysses, tp_degree=options.tp)
    with ParallelContext(config) as context:
        own = run(options, context)
        ranks = [
            json.loads(data)
            for data in context.group("world").exchange(json.dumps(own).encode(), label="measurements")
        ]
        if context.rank == 0:
            shared = [
                f"{axis}-{getattr(options, axis)}" for axis in ("ulysses", "tp") if getattr(options, axis)
            ]
            name = "-".join(["full-size", options.model, *shared])
            save(name, record_of(options, context, ranks), options.output)


def run(options: argparse.Namespace, context: ParallelContext) -> dict[str, Any]:
    """What this rank measured."""
    model_class = T5EncoderModel
    if options.model != "t5-xxl":
        model_class = transformer_class(presets.read(options.model)["transformer"])
    threads = default_threads(context.config.local_world_size)
    began = time.perf_counter()
    with PeakMemory() as loading:
        model = model_class.from_pretrained(
            options.weights,
            options.dtype,
            threads,
            context,
            quantised_compute=options.quantised_compute,
        )
    loaded = time.perf_counter()
    call = request_of(model, options)
    seconds, processor = [], []
    with PeakMemory() as running:
        for _ in range(options.steps):
            context.group("world").barrier()
            start, used = time.perf_counter(), time.process_time()
            result = call()
            seconds.append(round(time.perf_counter() - start, 2))
            processor.append(round(time.process_time() - used, 2))
    assert np.isfinite(result).all(), "the result holds values that are not finite"
    return {
        "load_s": round(loaded - began, 2),
        "steps_s": seconds,
        "steps_processor_s": processor,
        "weights_nbytes": model.weights.nbytes,
        "peak_loading_nbytes": loading.nbytes,
        "peak_running_nbytes": running.nbytes,
        "threads": threads,
        "dtype": model.compute_dtype,
        "result": {"shape": list(result.shape), "deviation": round(float(result.std()), 4)},
    }


def request_of(model: Any, options: argparse.Namespace) -> Callable[[], np.ndarray]:
    """One forward pass over random inputs."""
    if isinstance(model, T5EncoderModel):
        ids = np.random.default_rng(0).integers(0, model.config.vocab_size, (1, options.text_tokens))
        return lambda: model(ids)
    tokens = options.size // PIXELS_PER_TOKEN
    family = random_flux if isinstance(model, FluxTransformer) else random_sd3
    request = family.request_of(model.config, tokens, tokens, options.text_tokens)
    return lambda: model(**request)


def record_of(
    options: argparse.Namespace, context: ParallelContext, ranks: list[dict[str, Any]]
) -> dict[str, Any]:
    shared = {name: ranks[0][name] for name in ("dtype", "threads", "weights_nbytes", "result")}
    own = ("load_s", "steps_s", "steps_processor_s", "peak_loading_nbytes", "peak_running_nbytes")
    tokens = {"text_tokens": options.text_tokens}
    if options.model != "t5-xxl":
        tokens["image_tokens"] = (options.size // PIXELS_PER_TOKEN) ** 2
    return {
        "versions": versions("edgedit", "ggml-python", "numpy"),
        "model": options.model,
        "file_nbytes": open_source(options.weights).nbytes,
        "kernels": context.config.kernels,
        "quantised_compute": options.quantised_compute,
        "layout": {"ulysses": context.config.ulysses_degree, "tp": context.config.tp_degree},
        **tokens,
        **shared,
        "ranks": [{name: rank[name] for name in own} for rank in ranks],
    }


if __name__ == "__main__":
    main()
