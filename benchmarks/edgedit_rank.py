"""A rank of edgedit: one FLUX step, or one of both guidance branches. Started by denoise.py and scaling.py."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from model_directory import read_request
from peak import Peak
from rank import Contender, serve
from record import versions

from edgedit import ParallelConfig, ParallelContext
from edgedit.models.flux import FluxTransformer
from edgedit.pipelines.branches import Branches

AXES = ("ulysses", "cfg", "dp")


class Step:
    """Forward passes of one transformer, one a request, shared over the ranks of its context.

    The requests are guidance branches. With `ahead` their modulations are computed beforehand, as a pipeline does.
    """

    def __init__(self, arguments: argparse.Namespace, options: dict[str, Any]) -> None:
        self.context = ParallelContext(layout_of(arguments, kernels=options["kernels"]))
        self.model = FluxTransformer.from_pretrained(
            arguments.model,
            options["dtype"],
            arguments.threads,
            self.context,
            quantised_compute=options["compute"],
        )
        self.requests = [read_request(path) for path in options["requests"]]
        if options.get("ahead"):
            self.requests = [self._ahead(**request) for request in self.requests]
        self.branches = Branches(self.context, len(self.requests))
        self.exchange_s = self.wait_s = self.predict_s = 0.0

    def __call__(self) -> np.ndarray:
        """Velocities [requests, B, S, C]."""
        self.exchange_s = self.wait_s = self.predict_s = 0.0
        began = time.perf_counter()
        velocities = np.stack(self.branches.predict(self._predict))
        # what no branch took: the exchange of the predictions, nearly all of it waiting for the other branch
        self.wait_s += time.perf_counter() - began - self.predict_s
        return velocities

    def contender(self) -> Contender:
        return Contender(
            self,
            line_up=self.context.group("world").barrier,
            run_details=lambda: {"exchange_s": self.exchange_s, "wait_s": self.wait_s},
            details={"kernels": self.context.config.kernels},
        )

    def _ahead(
        self,
        timestep: np.ndarray,
        pooled_projections: np.ndarray,
        guidance: np.ndarray | None = None,
        **request: np.ndarray,
    ) -> dict[str, np.ndarray]:
        modulations = self.model.modulations(timestep[None], pooled_projections, guidance)
        return {**request, "modulations": modulations[0]}

    def _predict(self, branch: int) -> np.ndarray:
        request = self.requests[branch]
        began = time.perf_counter()
        velocity = self.model.velocity(**request) if "modulations" in request else self.model(**request)
        self.predict_s += time.perf_counter() - began
        for executor in self.model._executors.values():
            self.exchange_s += executor.times.exchange_s
            self.wait_s += executor.times.wait_s
        return velocity


def layout_of(arguments: argparse.Namespace, **options: Any) -> ParallelConfig:
    degrees = {f"{axis}_degree": getattr(arguments, axis) for axis in AXES}
    return ParallelConfig.from_env(**degrees, **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    for axis in AXES:
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("address")
    arguments = parser.parse_args()

    def prepare(options: dict[str, Any]) -> Contender:
        if "peak" in options:
            peak = Peak(Path(options["peak"]), arguments.threads, options["rounds"])
            return Contender(peak, details={"flops": peak.flops})
        return Step(arguments, options).contender()

    serve(arguments.address, layout_of(arguments).rank, versions("edgedit", "ggml-python", "numpy", "mpi4py"), prepare)


if __name__ == "__main__":
    main()
