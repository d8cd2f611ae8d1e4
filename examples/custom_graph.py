"""A graph of your own with two collectives, run on any number of ranks.

    mpirun -n 3 python examples/custom_graph.py

Each rank holds some of the tokens and a slice of the hidden units of a two-layer network. An all-gather brings the
tokens together, each rank computes its slice, an all-reduce adds the partial results. The doubled input does not
depend on the gather, so the planner runs it while the gather is in flight.
"""

import os

import numpy as np

from edgedit import CpuBackend, Executor, GraphBuilder, ParallelConfig, ParallelContext
from edgedit.launcher import detect
from edgedit.parallel.split import array_split

TOKENS, CHANNELS, HIDDEN = 7, 8, 12


def main() -> None:
    world_size = detect(os.environ).world_size
    with ParallelContext(ParallelConfig.from_env(ulysses_degree=world_size)) as context:
        group = context.group("ulysses")
        tokens, hidden = array_split(TOKENS, group.size), array_split(HIDDEN, group.size)
        rng = np.random.default_rng(0)  # the same numbers on every rank
        x = rng.standard_normal((TOKENS, CHANNELS), dtype=np.float32)
        w1 = rng.standard_normal((HIDDEN, CHANNELS), dtype=np.float32)
        w2 = rng.standard_normal((CHANNELS, HIDDEN), dtype=np.float32)
        own_tokens = slice(sum(tokens[: group.rank]), sum(tokens[: group.rank + 1]))
        own_hidden = slice(sum(hidden[: group.rank]), sum(hidden[: group.rank + 1]))

        b = GraphBuilder("two-layer network")
        local = b.input("x", (tokens[group.rank], CHANNELS))
        everything = b.all_gather("tokens", b.scale(local, 1.0), group, tokens)
        doubled = b.scale(local, 2.0)  # overlaps with the gather
        inner = b.silu(b.linear(everything, b.constant("w1", w1[own_hidden])))
        partial = b.linear(inner, b.constant("w2", w2[:, own_hidden]))
        b.output("y", b.all_reduce("sum", partial, group))
        b.output("doubled", doubled)

        executor = Executor(b, CpuBackend(threads=1), context, degree=group.size)
        result = executor.run({"x": x[own_tokens]})

        before = x @ w1.T
        expected = before / (1 + np.exp(-before)) @ w2.T
        error = np.abs(result["y"] - expected).max()
        assert error < 1e-4 and np.array_equal(result["doubled"], 2 * x[own_tokens]), error
        if context.rank == 0:
            print(
                f"{group.size} rank(s), {len(executor.schedule.segments)} segments, largest error {error:.1e}"
            )


if __name__ == "__main__":
    main()
