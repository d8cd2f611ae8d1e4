"""``edgedit convert``: a network of a checkpoint as a GGUF file, quantised while it is written."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit import embedded, launcher
from edgedit.commands import output
from edgedit.errors import CheckpointError
from edgedit.pipelines.parts import EMBEDDED

if TYPE_CHECKING:
    from edgedit.commands.networks import Network
    from edgedit.weights.export import Export

SUFFIX = ".gguf"
DEFAULT_PART = "transformer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("input", metavar="IN",
        help="a pipeline's directory, a component's, a safetensors or a GGUF file, or embedded")  # fmt: skip
    add("output", type=Path, metavar=f"OUT{SUFFIX}", help="written beside and renamed when it is complete")
    add("--type", default="q8_0", metavar="TYPE",
        help="of matrices: f32, f16, bf16, a quantised one (q4_k), or stored (default: %(default)s)")  # fmt: skip
    add("--keep", action="append", default=[], metavar="REGEX=TYPE",
        help="type of tensors in whose name, in the file that is written, the expression is found; again for more, of "
        "which the first that fits counts")  # fmt: skip
    add("--part", metavar="NAME", help=f"which network, where there are several (default: {DEFAULT_PART})")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add("--quiet", action="store_true", help="print nothing but errors (and the JSON object)")


def run(args: argparse.Namespace) -> int:
    if args.output.suffix != SUFFIX:
        raise ValueError(f"output {str(args.output)!r}: the name must end in {SUFFIX}")
    path = embedded.path() if args.input == EMBEDDED else Path(args.input)
    if not path.exists():
        raise ValueError(f"{path} does not exist")
    if args.output.exists() and path.is_file() and args.output.samefile(path):
        raise ValueError(f"{args.output} is the input")
    output.check_writable([args.output])
    if (launch := launcher.detect(os.environ)).world_size > 1:
        raise ValueError(f"convert runs as one process, not as {launch.world_size}")

    from edgedit.pipelines.progress import Progress
    from edgedit.weights.export import Export
    from edgedit.weights.quantisation import AS_STORED, Rule, check_type

    dtype, rules = check_type(args.type, AS_STORED), [Rule.parse(text) for text in args.keep]
    network = _chosen(path, args.part)
    if network.match.problems:
        raise CheckpointError(
            f"{network.source.path}: {network.name} is not what {network.model.__name__} needs: "
            f"{network.match.problems}"
        )
    keys = {name: keys[0] for name, keys in network.match.keys.items()}
    export = Export(network.kind, network.config, network.source, keys, dtype, rules)
    _check_room(args.output, export.layout.nbytes)

    def write(path: Path) -> None:
        with Progress(not args.quiet).nbytes("convert") as advance, open(path, "wb") as file:
            export.write(file, advance)
            file.flush()
            os.fsync(file.fileno())

    with _terminated_as_interrupted():
        output.write_files({args.output: write})
    report = _report(args.output, network, export)
    if args.json:
        print(json.dumps(report))
    elif not args.quiet:
        types = ", ".join(f"{dtype} x {count}" for dtype, count in report["types"].items())
        print(f"{args.output}: {network.name} ({network.kind}), {types}, {report['nbytes']} bytes")
    return 0


def _chosen(path: Path, part: str | None) -> Network:
    from edgedit.commands.networks import networks_at

    networks = {network.name: network for network in networks_at(path)}
    if part is None and len(networks) == 1:
        return next(iter(networks.values()))
    name = part or DEFAULT_PART
    if name not in networks:
        raise ValueError(f"{path} has no part {name!r}; it has {', '.join(networks)} (--part)")
    return networks[name]


def _check_room(path: Path, nbytes: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < nbytes:
        raise ValueError(f"{path} will have {nbytes} bytes, but only {free} are free in {path.parent}")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the work as Ctrl-C does, so that no part of a file stays."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(path: Path, network: Network, export: Export) -> dict[str, Any]:
    return {
        "output": str(path),
        "part": network.name,
        "architecture": network.kind,
        "nbytes": export.layout.nbytes,
        "types": dict(export.types.most_common()),
    }
