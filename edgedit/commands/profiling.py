"""What ``--profile FILE`` asks for: a timeline of every rank, one trace file, and tables."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import edgedit
from edgedit.commands.layout_facts import layout_facts
from edgedit.config import DEVICE_BACKENDS, ParallelConfig

if TYPE_CHECKING:
    from edgedit.parallel.context import ParallelContext
    from edgedit.parallel.timeline import Slice, Timeline


def add_profile_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", type=Path, metavar="FILE.json",
        help="also run node by node, print where the time goes and write a trace for ui.perfetto.dev")  # fmt: skip


def check_profile(path: Path | None, config: ParallelConfig) -> None:
    """ValueError for a profile that cannot be had."""
    if path is None:
        return
    if path.suffix != ".json":
        raise ValueError(f"--profile {str(path)!r}: the name must end in .json")
    if config.backend in DEVICE_BACKENDS:
        raise ValueError(f"--profile and --backend {config.backend}: only the CPU can be profiled")


class Finished:
    """The timelines of all ranks: on world rank 0, which alone can show and write them."""

    def __init__(self, ranks: Sequence[Sequence[Slice]], config: ParallelConfig) -> None:
        from edgedit.graph.profile_sums import summed

        self._ranks = ranks
        self._config = config
        self.profiles = [summed(slices) for slices in ranks]

    def table(self) -> str:
        from edgedit.graph.profile_page import as_text

        return as_text(self.profiles)

    def writer(self, about: Mapping[str, Any]) -> Callable[[Path], None]:
        """Writes the trace; `about` says what ran."""
        from edgedit.graph.profile_sums import as_json
        from edgedit.graph.trace import as_trace

        config = self._config
        facts = {
            "version": edgedit.__version__,
            "system": platform.platform(),
            **layout_facts(config),
            **about,
            "ranks": [as_json(profile) for profile in self.profiles],
        }
        trace = as_trace(self._ranks, facts)

        def write(partial: Path) -> None:
            partial.write_text(json.dumps(trace))

        return write


def finish(timeline: Timeline, context: ParallelContext) -> Finished:
    """End the timelines of all ranks, which call this together, and bring them to world rank 0."""
    from edgedit.parallel.gathering import gather

    timeline.finish()
    return Finished(gather(timeline, context), context.config)
