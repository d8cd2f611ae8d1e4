"""What every network has in common: configuration, weights, and compiled graphs that are kept between calls."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from edgedit.config import DEVICE_BACKENDS, ParallelConfig
from edgedit.errors import CheckpointError
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.executor import Executor
from edgedit.host import default_threads
from edgedit.kernels import check_quantised_compute
from edgedit.models.adapters import adapted
from edgedit.models.module import Module
from edgedit.models.tensor_parallel import TensorGroup, share, sharing_notes
from edgedit.parallel.context import ParallelContext
from edgedit.weights.configs import read_json
from edgedit.weights.convert import AUTO, check_compute_dtype, main_dtype
from edgedit.weights.deltas import Deltas
from edgedit.weights.loader import Progress, WeightStore, load
from edgedit.weights.recognise import component_of, holds
from edgedit.weights.sources import TensorSource, open_source
from edgedit.weights.told import ComponentWeights, open_component

MAX_COMPILED_GRAPHS = 8


class Model:
    """A network with loaded weights, called with numpy arrays.

    Subclasses say which configuration and network they use and how checkpoint keys are spelt, and build graphs.
    A graph is built, planned and allocated once per structural key (shapes) and then only run; the least recently
    used one is freed when more than MAX_COMPILED_GRAPHS are kept.
    """

    config_class: ClassVar[Any]
    weight_axis: ClassVar[str | None] = None  # mesh axis or overlay whose ranks share the weights
    architecture: ClassVar[str]  # of weights/names
    ignored_keys: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        config: Any,
        network: Module,
        weights: WeightStore,
        compute_dtype: str = "f32",
        threads: int | None = None,
        context: ParallelContext | None = None,
        quantised_compute: str = "exact",
    ) -> None:
        self.config = config
        self.network = network
        self.weights: Any = weights
        self.compute_dtype = compute_dtype
        self.quantised_compute = check_quantised_compute(quantised_compute)
        self.context = context or ParallelContext(ParallelConfig())
        self.backend: Any = CpuBackend(threads or default_threads(self.context.config.local_world_size))
        self._make_executor: Callable[..., Executor] = Executor
        self._executors: OrderedDict[Hashable, Executor] = OrderedDict()
        network.name_scopes()
        if self.context.config.backend in DEVICE_BACKENDS:
            self._move_to_device()

    def _move_to_device(self) -> None:
        """Compute on this rank's CUDA device, weights included. Raises EdgeditError where there is none."""
        from edgedit.graph.cuda import CudaBackend, CudaExecutor, to_device

        on_host = self.weights
        self.backend = CudaBackend(self.context.config.device)
        self.weights = to_device((p for _, p in self.network.named_parameters()), self.backend)
        self._make_executor = CudaExecutor
        on_host.close()

    @classmethod
    def build_network(cls, config: Any) -> Module:
        """The module tree, whose parameter names are checkpoint keys."""
        raise NotImplementedError

    @classmethod
    def network_on(cls, config: Any, parallel: ParallelConfig, compute_dtype: str) -> Module:
        """The module tree of this rank, with its shares of what the ranks of a layout share."""
        network = cls.build_network(config)
        if cls.weight_axis is not None:
            share(network, TensorGroup.of(parallel, cls.weight_axis), compute_dtype)
        return network

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user may not expect of the weights."""
        return sharing_notes(self.network, self.compute_dtype)

    @classmethod
    def parameter_name(cls, key: str) -> str | None:
        """The parameter that a checkpoint key stands for; None for keys that are not needed."""
        return key

    @classmethod
    def check_parallel(cls, config: Any, parallel: ParallelConfig) -> None:
        """Raise ValueError for a layout that this model cannot run; called before weights are read."""

    @classmethod
    def read_config(cls, directory: str | Path) -> Any:
        """The configuration in `directory/config.json`. Raises CheckpointError when there is none."""
        try:
            content = read_json(Path(directory) / "config.json")
        except ValueError as error:
            raise CheckpointError(f"{cls.__name__} needs its config: {error}") from None
        return cls.config_class.from_dict(content)

    @classmethod
    def open(cls, where: str | Path | ComponentWeights) -> tuple[Any, TensorSource]:
        """Configuration and weights, of which nothing is read yet. Raises CheckpointError for what does not fit."""
        if isinstance(where, (str, Path)) and Path(where).is_dir():
            config = cls.read_config(where)
            source = open_source(where)
            if holds(source, cls.architecture):
                source = component_of(source, cls.architecture).source
            return config, source
        if isinstance(where, (str, Path)):
            where = open_component(where, cls.architecture)
        config = cls.config_class.from_dict(where.config)
        return config, cls.completed(where.source, config)

    @classmethod
    def completed(cls, source: TensorSource, config: Any) -> TensorSource:
        """The weights of a file, with those that files may leave out."""
        return source

    @classmethod
    def from_pretrained(
        cls,
        where: str | Path | ComponentWeights,
        compute_dtype: str = AUTO,
        threads: int | None = None,
        parallel: ParallelConfig | ParallelContext | None = None,
        progress: Progress | None = None,
        quantised_compute: str = "exact",
        deltas: Deltas | None = None,
        lora_mode: str = "merge",
    ) -> Any:
        """Load a network from a component of a diffusers directory, or from a safetensors or GGUF file that holds it.

        compute_dtype      type of the linear weights in memory: f32, f16, bf16, a ggml quantisation such as q8_0, or
                           auto: as stored in GGUF files, f32 for others
        threads            compute threads; cores divided by the ranks of this host unless given
        parallel           layout of the ranks; one rank alone unless given
        progress           called with (bytes loaded, bytes in all)
        quantised_compute  "int8" to multiply quantised weights as integers, which rounds activations too
        deltas             what LoRA adds to the weights
        lora_mode          "merge" adds it to the weights, "apart" keeps it beside them

        Raises ValueError for a layout that the model cannot run, CheckpointError for files that do not fit.
        """
        check_quantised_compute(quantised_compute)
        check_compute_dtype(compute_dtype)
        config, source = cls.open(where)
        context = _context_of(parallel)
        cls.check_parallel(config, context.config)
        main_type = main_dtype(source, compute_dtype)
        network = cls.network_on(config, context.config, main_type)
        if deltas:
            source = adapted(network, source, deltas, cls.parameter_name, lora_mode)
        weights = load(
            network,
            source,
            compute_dtype,
            cls.parameter_name,
            cls.ignored_keys,
            progress,
            context.config.kernels,
        )
        return cls(config, network, weights, main_type, threads, context, quantised_compute)

    def run(
        self,
        key: Hashable,
        build: Callable[[GraphBuilder], None],
        inputs: Mapping[str, np.ndarray],
        degree: int = 1,
    ) -> dict[str, np.ndarray]:
        """Run the graph that `build` makes, built only when `key` is new; see Executor.run.

        `degree` is the number of ranks that share the graph's work.
        """
        return self.executor(key, build, degree).run(inputs)

    def executor(self, key: Hashable, build: Callable[[GraphBuilder], None], degree: int = 1) -> Executor:
        """The compiled graph for `key`."""
        if key not in self._executors:
            builder = self.new_builder(self.context.config, self.compute_dtype, self.quantised_compute)
            try:
                build(builder)
            except BaseException:
                builder.release()
                raise
            if len(self._executors) >= MAX_COMPILED_GRAPHS:
                _, oldest = self._executors.popitem(last=False)
                oldest.close()
            self._executors[key] = self._make_executor(builder, self.backend, self.context, degree=degree)
        self._executors.move_to_end(key)
        return self._executors[key]

    def release(self, key: Hashable) -> None:
        """Free the compiled graph for `key`, if there is one."""
        if key in self._executors:
            self._executors.pop(key).close()

    @classmethod
    def new_builder(
        cls, parallel: ParallelConfig, compute_dtype: str, quantised_compute: str = "exact"
    ) -> GraphBuilder:
        """A builder with the choices of a layout."""
        return GraphBuilder(
            cls.__name__,
            parallel.ops,
            kernels=parallel.kernels,
            compute_dtype=compute_dtype,
            quantised_compute=quantised_compute,
        )

    def close(self) -> None:
        """Free graphs, weights and the backend; safe to call twice."""
        while self._executors:
            self._executors.popitem()[1].close()
        self.weights.close()
        self.backend.close()


def _context_of(parallel: ParallelConfig | ParallelContext | None) -> ParallelContext:
    if isinstance(parallel, ParallelContext):
        return parallel
    return ParallelContext(parallel or ParallelConfig())
