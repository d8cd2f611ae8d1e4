"""A rank of diffusers on PyTorch: one FLUX step. Started by denoise.py and scaling.py; needs no edgedit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._inductor.config
from diffusers import ContextParallelConfig, FluxTransformer2DModel
from rank import Contender, serve
from record import versions

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Positions and integers keep their type.
FLOATING = ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep", "guidance")


class Step:
    """Forward passes of one transformer, one a request."""

    def __init__(self, arguments: argparse.Namespace, options: dict[str, Any]) -> None:
        dtype = DTYPES[options["dtype"]]
        self.model = FluxTransformer2DModel.from_pretrained(arguments.model, torch_dtype=dtype).eval()
        if arguments.world_size > 1:
            self.model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=arguments.world_size))
        if options.get("compiled"):
            # weights become constants, which may be laid out anew
            torch._inductor.config.freezing = True
            self.model.compile()
        self.requests = [_request(path, dtype) for path in options["requests"]]

    def __call__(self) -> np.ndarray:
        """Velocities [requests, B, S, C]."""
        with torch.no_grad():
            velocities = [self.model(**request, return_dict=False)[0] for request in self.requests]
        return torch.stack(velocities).float().numpy()


def _request(path: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    with np.load(path) as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays}
    return {name: tensor.to(dtype if name in FLOATING else torch.float32) for name, tensor in tensors.items()}


def join(store: Path, rank: int, world_size: int) -> None:
    """Join the ranks of diffusers' context parallelism over gloo."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size
    )
    # diffusers asks how many accelerators there are to divide the ranks among; a processor alone counts as none.
    torch.accelerator.device_count = lambda: 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--store", type=Path, help="file through which several ranks find each other")
    parser.add_argument("address")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shared = arguments.world_size > 1
    if shared:
        join(arguments.store, arguments.rank, arguments.world_size)

    def prepare(options: dict[str, Any]) -> Contender:
        contender = Contender(Step(arguments, options), first_runs=2 if options.get("compiled") else 1)
        if shared:
            contender.line_up = torch.distributed.barrier
        return contender

    serve(arguments.address, arguments.rank, versions("torch", "diffusers", "numpy"), prepare)


if __name__ == "__main__":
    main()
