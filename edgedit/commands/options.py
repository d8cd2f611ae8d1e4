"""Options that several commands share: what a rank takes of its host, the layout over ranks and how they talk."""

from __future__ import annotations

import argparse
from typing import Any

from edgedit import binding, config, kernels
from edgedit.degrees import sequence_degrees

# Ranks that are threads of one process are not started by a launcher.
LAUNCHED_BACKENDS = tuple(backend for backend in config.BACKENDS if backend != "local")


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    """What a rank takes of its host."""
    add = parser.add_argument
    add("--threads", type=int, metavar="N", help="default: cores of this host divided by the ranks on it")
    add("--bind", default="auto", metavar="HOW",
        help=f"cores that a rank keeps to: {', '.join(binding.MODES)}; auto: its own if there are enough")  # fmt: skip


def bind_rank(args: argparse.Namespace, parallel: config.ParallelConfig) -> binding.Binding:
    """Keep this rank on its cores. ValueError for options that cannot work."""
    if args.threads is not None and args.threads < 1:
        raise ValueError(f"--threads is {args.threads}; at least 1 is needed")
    return binding.bind(args.bind, parallel.local_rank, parallel.local_world_size, args.threads)


def add_parallel_arguments(parser: argparse.ArgumentParser) -> None:
    """The degrees, the backend and the words for how collectives run."""
    group = parser.add_argument_group(
        "ranks",
        "world size = cfg x dp x (ring or kv-gather) x ulysses x tp; launch with mpirun -n WORLD_SIZE",
    )
    helps = {
        "cfg": "guidance branches on different ranks",
        "ulysses": "tokens over ranks, heads during attention",
        "dp": "pictures over ranks",
        "ring": "tokens over ranks, keys and values passed round",
        "kv-gather": "tokens over ranks, keys and values gathered",
        "tp": "weights over ranks",
    }
    for flag, text in helps.items():
        group.add_argument(f"--{flag}", type=int, default=1, metavar="N", help=text)
    group.add_argument(
        "--vae-ranks",
        dest="vae_degree",
        type=int,
        default=1,
        metavar="N",
        help="rows of the decoded pictures over the first N of the ranks",
    )
    group.add_argument("--sp", type=int, metavar="N", help="tokens over N ranks, the way chosen for you")
    group.add_argument("--backend", default="auto", help=f"how ranks talk: {', '.join(LAUNCHED_BACKENDS)}")
    group.add_argument("--comm", default="auto", help=f"who runs collectives: {', '.join(config.COMMS)}")
    group.add_argument("--ops", default="auto", help=f"nodes that move layouts: {', '.join(config.OPS)}")
    group.add_argument(
        "--kernels", default="auto", help=f"who multiplies on the CPU: {', '.join(kernels.CHOICES)}"
    )
    group.add_argument(
        "--wire-dtype",
        default="auto",
        help=f"type of activations on the wire: {', '.join(config.WIRE_DTYPES)}",
    )
    group.add_argument(
        "--shard-weights",
        action="store_true",
        help="keep 1/N of the transformer on each of N ranks, and gather each block ahead of use",
    )
    group.add_argument(
        "--text-encoder-ranks",
        dest="text_encoder_degree",
        type=int,
        default=1,
        metavar="N",
        help="T5's weights over the first N of the ranks, which alone have text encoders then",
    )
    group.add_argument(
        "--text-encoders",
        default="replicated",
        metavar="WHERE",
        help="replicated: every rank has them; first: only the first rank, which sends what it made "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds of silence after which a rank is taken for lost (default: %(default)g)",
    )


def parallel_options(args: argparse.Namespace, num_heads: int) -> tuple[dict[str, Any], str | None]:
    """Options for ``ParallelConfig``, and what ``--sp`` chose, if it was given.

    ValueError where ``--sp`` is no number of ranks or contradicts a degree.
    """
    degrees = {f"{axis}_degree": getattr(args, axis) for axis in config.AXES}
    degrees |= {name: getattr(args, name) for name in ("vae_degree", "text_encoder_degree")}
    chosen = None
    if args.sp is not None:
        shared = _sequence_parallel(args, num_heads)
        degrees.update((f"{axis}_degree", degree) for axis, degree in shared.items())
        used = [f"{axis} {degree}" for axis, degree in shared.items() if degree > 1]
        chosen = f"--sp {args.sp}: {', '.join(used) or 'one rank holds all tokens'}"
    choices = ("backend", "comm", "ops", "kernels", "wire_dtype", "text_encoders")
    words = {name: getattr(args, name) for name in choices}
    residency = "sharded" if args.shard_weights else "whole"
    return {**degrees, **words, "weight_residency": residency, "timeout_s": args.timeout}, chosen


def _sequence_parallel(args: argparse.Namespace, num_heads: int) -> dict[str, int]:
    given = [axis for axis in ("ulysses", "ring", "kv_gather") if getattr(args, axis) != 1]
    if given:
        flags = ", ".join(f"--{axis.replace('_', '-')}" for axis in given)
        raise ValueError(f"--sp {args.sp} chooses the way of sharing the sequence, but {flags} is given too")
    if args.sp < 1:
        raise ValueError(f"--sp is {args.sp}; at least 1 is needed")
    return sequence_degrees(args.sp, max(1, num_heads // max(1, args.tp)))
