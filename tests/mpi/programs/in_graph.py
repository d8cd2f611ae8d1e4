"""The same work once per way of running it, in one launch; every way must give the same bits.

in_graph.py WHAT [ARGUMENT ...]

kinds RANKS         every kind of collective and type, uneven counts, several in flight
attention REPEATS   joint attention with random pauses around pack, exchange and receive
sharing REPEATS     the same on four ranks that share tokens in other ways than Ulysses, some without any token
latents MODEL RANKS final latents of a pipeline; with wires of f32 and f16
"""

from __future__ import annotations

import ctypes
import random
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from edgedit import ParallelConfig, ParallelContext, Pipeline
from edgedit.graph._ggml import lib
from edgedit.graph.backend import CpuBackend
from edgedit.graph.builder import GraphBuilder
from edgedit.graph.executor import Executor
from edgedit.graph.tensor import Tensor
from edgedit.sequence.choice import strategy_for
from edgedit.sequence.strategy import Stream

Outputs = dict[str, np.ndarray]


def contexts(**options: object) -> Iterator[ParallelContext]:
    """One after another, a context per way of running."""
    world_size = ParallelConfig.from_env(**options).world_size
    for backend in ("none",) if world_size == 1 else ("mpi", "shm"):
        for comm in ("graph-cut", "in-graph"):
            config = ParallelConfig.from_env(backend=backend, comm=comm, **options)
            with ParallelContext(config) as context:
                assert (context.config.backend, context.config.comm) == (backend, comm)
                yield context


def check_same(name: str, first: Outputs, other: Outputs) -> None:
    assert first.keys() == other.keys()
    for key, values in first.items():
        assert values.tobytes() == other[key].tobytes(), (
            f"{name}: {key} differs from the first way of running"
        )


# every kind of collective


def all_kinds(b: GraphBuilder, group: object) -> None:
    size, rank = group.size, group.rank
    wide = b.scale(b.input("x", (3 * size + 2, 5)), 1.5)
    flat = b.scale(b.input("y", (sum(uneven(rank, peer) for peer in range(size)),)), 0.5)
    for dtype in ("f32", "f16", "bf16"):
        x, y = b.cast(wide, dtype), b.cast(flat, dtype)
        with b.scope(dtype):
            sent, received = ([uneven(*pair) for pair in pairs] for pairs in pairs_of(rank, size))
            results = {"moved": b.all_to_all("move", y, group, sent, received)}
            mine = b.slice(x, 0, 0, 1 + rank)
            results["gathered"] = b.all_gather(
                "gather", b.contiguous(mine), group, [1 + peer for peer in range(size)]
            )
            for op in ("sum", "max", "min"):
                results[op] = b.all_reduce(op, x, group, op)
            results["broadcast"] = b.broadcast("broadcast", x, group)
            results["shifted"] = ring_shift(b, b.contiguous(mine), rank, size, group.name)
        for name, tensor in results.items():
            b.output(f"{dtype}.{name}", b.scale(b.cast(tensor, "f32"), 1.0))


def uneven(sender: int, receiver: int) -> int:
    return (3 * sender + 2 * receiver) % 4 * (sender + 1)


def pairs_of(rank: int, size: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    return [(rank, peer) for peer in range(size)], [(peer, rank) for peer in range(size)]


def ring_shift(b: GraphBuilder, x: Tensor, rank: int, size: int, axis: str) -> Tensor:
    sent, received = [0] * size, [0] * size
    source = (rank - 1) % size
    sent[(rank + 1) % size] = x.count
    received[source] = 5 * (1 + source)
    return b.collective("ring_shift", "shift", axis, x, (received[source],), sent, received, rank)


def kinds() -> None:
    first: list[Outputs] = []
    size = ParallelConfig.from_env(ulysses_degree=int(sys.argv[2])).world_size
    sent: list[int] = []
    for way, context in enumerate(contexts(ulysses_degree=size)):
        group = context.group("ulysses")
        b = GraphBuilder("kinds")
        all_kinds(b, group)
        executor = Executor(b, CpuBackend(1), context, degree=size)
        rng = np.random.default_rng(group.rank)
        before = group.bytes_sent
        for run in range(20):
            inputs = {
                name: rng.standard_normal(t.shape, dtype=np.float32) * 10 ** (run % 3)
                for name, t in b.inputs.items()
            }
            outputs = executor.run(inputs)
            if way == 0:
                first.append(outputs)
            check_same(f"{context.config.backend} {context.config.comm}, run {run}", first[run], outputs)
        sent.append(group.bytes_sent - before)
        executor.close()
    assert len(set(sent)) == 1, sent
    check_against_numpy(first[0], group)


def check_against_numpy(outputs: Outputs, group: object) -> None:
    inputs = []
    for rank in range(group.size):
        rng = np.random.default_rng(rank)
        x = rng.standard_normal((3 * group.size + 2, 5), dtype=np.float32)
        y = rng.standard_normal((sum(uneven(rank, peer) for peer in range(group.size)),), dtype=np.float32)
        inputs.append((np.float32(1.5) * x, np.float32(0.5) * y))
    whole = np.stack([x for x, _ in inputs])
    np.testing.assert_array_equal(outputs["f32.max"], whole.max(0))
    np.testing.assert_allclose(outputs["f32.sum"], whole.sum(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(outputs["f32.broadcast"], inputs[0][0])
    np.testing.assert_array_equal(
        outputs["f16.broadcast"], inputs[0][0].astype(np.float16).astype(np.float32)
    )
    np.testing.assert_array_equal(
        outputs["f32.gathered"], np.concatenate([x[: r + 1] for r, (x, _) in enumerate(inputs)])
    )
    blocks = []
    for rank, (_, y) in enumerate(inputs):
        begin = sum(uneven(rank, peer) for peer in range(group.rank))
        blocks.append(y[begin : begin + uneven(rank, group.rank)])
    np.testing.assert_array_equal(outputs["f32.moved"], np.concatenate(blocks))
    previous = (group.rank - 1) % group.size
    np.testing.assert_array_equal(outputs["f32.shifted"], inputs[previous][0][: previous + 1].ravel())


# attention with pauses


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
def pause(tensor: int, thread: int, threads: int, userdata: int) -> None:
    if random.random() < 0.5:
        time.sleep(random.random() * 2e-3)


class PausingBuilder(GraphBuilder):
    def paused(self, x: Tensor) -> Tensor:
        operator = ctypes.cast(pause, lib.ggml_custom_op_t)
        pointer = lib.ggml_custom_inplace(self._context, x.pointer, None, 0, operator, 1, None)
        return self._emit(pointer, x.shape, "pause")

    def collective(
        self, kind: str, name: str, axis: str, send: Tensor, *rest: object, **options: object
    ) -> Tensor:
        if (
            send.node not in self.pack_specs
        ):  # packed straight into the peers' memory: nothing may stand in between
            send = self.paused(send)
        return self.paused(super().collective(kind, name, axis, send, *rest, **options))


def attention() -> None:
    for ops in ("generic", "fused"):
        attend((5, 17), int(sys.argv[2]), ulysses_degree=3, ops=ops)


def sharing() -> None:
    repeats = int(sys.argv[2])
    attend((5, 17), repeats, ring_degree=4)
    attend((2, 1), repeats, ring_degree=2, ulysses_degree=2, ops="generic")
    attend((2, 1), repeats, ring_degree=4)
    attend((5, 17), repeats, kv_gather_degree=4)
    attend((5, 17), repeats, ring_degree=2, ulysses_degree=2)
    attend((1, 7), repeats, kv_gather_degree=2, ulysses_degree=2)


def attend(lengths: tuple[int, ...], repeats: int, ops: str = "fused", **degrees: int) -> None:
    heads, head_dim = 7, 8
    first: Outputs | None = None
    for context in contexts(**degrees, ops=ops):
        random.seed(context.rank)
        strategy = strategy_for(context.config, "f32")
        b = PausingBuilder("attention", ops)
        streams, values = [], {}
        for index, length in enumerate(lengths):
            planes = []
            for plane in "qkv":
                rng = np.random.default_rng([index, ord(plane)])
                whole = rng.standard_normal((1, length, heads, head_dim), dtype=np.float32)
                values[f"{plane}{index}"] = whole
                share = strategy.split(b, b.input(f"{plane}{index}", whole.shape), 1)
                planes.append(b.paused(b.scale(share, 1.0)))
            streams.append(Stream(*planes, length))
        for index, (out, length) in enumerate(zip(strategy.attention(b, streams), lengths, strict=True)):
            with b.scope(f"stream{index}"):
                b.output(f"out{index}", b.contiguous(strategy.gather(b, out, length)))
        executor = Executor(b, CpuBackend(2), context, degree=context.world_size)
        assert bool(b.pack_specs) == (ops == "fused" and degrees.get("ring_degree") != context.world_size)
        for _ in range(repeats if context.config.comm == "in-graph" else 1):
            outputs = executor.run(values)
            first = first or outputs
            check_same(f"{degrees} {context.config.backend} {context.config.comm}", first, outputs)
        executor.close()
    assert first is not None
    assert all(np.isfinite(values).all() and values.any() for values in first.values())


# latents


def latents() -> None:
    model, size = sys.argv[2], int(sys.argv[3])
    exact: np.ndarray | None = None
    for wire_dtype in ("f32", "f16"):
        first: Outputs | None = None
        for context in contexts(ulysses_degree=size, wire_dtype=wire_dtype):
            pipeline = Pipeline.from_pretrained(model, threads=1, parallel=context, progress=False)
            result = pipeline(
                "a red apple", num_inference_steps=2, seed=1, height=48, width=80, max_sequence_length=5
            )
            outputs = {"latents": result.latents, "bytes sent": np.array(result.bytes_sent)}
            first = first or outputs
            check_same(f"{wire_dtype} {context.config.backend} {context.config.comm}", first, outputs)
        assert first is not None
        exact = first["latents"] if exact is None else exact
        error = np.linalg.norm(first["latents"] - exact) / np.linalg.norm(exact)
        assert error < 2e-3, error
        assert (error > 0) == (wire_dtype == "f16" and size > 1), (
            f"a wire of {wire_dtype} has an error of {error}"
        )


WORK: dict[str, Callable[[], None]] = {"kinds": kinds, "attention": attention, "sharing": sharing, "latents": latents}

if __name__ == "__main__":
    WORK[sys.argv[1]]()
    print("all ways agree", flush=True)
