"""What the two ways of running a schedule have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from edgedit.errors import EdgeditError
from edgedit.parallel.timeline import Timeline
from edgedit.parallel.times import RunTimes


class Runner(ABC):
    """Runs one planned graph. The executor plans, allocates, sets inputs and takes outputs; a runner does the rest."""

    def place(self) -> None:  # noqa: B027 (most tensors stand where ggml's allocator puts them)
        """Give memory to tensors that ggml's allocator must leave alone. Called before it runs."""

    @abstractmethod
    def connect(self, graph: object) -> None:
        """Take over the allocated ggml graph, whose nodes stand in the order of the schedule."""

    @abstractmethod
    def run(self, times: RunTimes) -> None:
        """Compute every node. Raises GgmlError, or CollectiveError on every rank."""

    def run_profiled(self, times: RunTimes, timeline: Timeline) -> None:
        """`run`, node by node, with the time of each: the same results, a little slower.

        Raises EdgeditError where that cannot be done.
        """
        raise EdgeditError("only graphs on the CPU can be profiled")

    def finish(self) -> None:  # noqa: B027
        """The outputs have been read: received data may be overwritten."""

    def close(self) -> None:  # noqa: B027
        """Free what `place` took; the ggml graph is of no use afterwards."""
