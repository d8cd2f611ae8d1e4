"""What a group knows about its peers besides their data: who died, who failed, who has left, and where this rank is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from edgedit.errors import CollectiveError, EdgeditError
from edgedit.parallel.call import Call

AnyError = TypeVar("AnyError", bound=EdgeditError)


class Trouble(NamedTuple):
    """Why no collective will finish any more."""

    error: type[CollectiveError]
    text: str


class Monitor:
    """The state of one context that its groups share. This base serves a single rank: nothing can happen to peers."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.failure: str | None = None  # set once; the context is closed from then on
        self.recoverable = True  # whether the backend survives the failure, so that a new context can be made
        self._closed = False
        self._step: int | None = None
        self._phase: str | None = None

    def note(self, step: int | None = None, phase: str | None = None) -> None:
        """Say where the run is; failures report it, here and on the peers."""
        self._step, self._phase = step, phase

    def where(self) -> str:
        """E.g. "step 3 of denoise", or "" before anything was noted."""
        step = "" if self._step is None else f"step {self._step}"
        phase = self._phase or ""
        return f"{step} of {phase}" if step and phase else step or phase

    def describe(self, call: Call | None, reason: str) -> str:
        """The message of a failure: rank, step, collective and tensor, reason."""
        parts = [part for part in (self.where(), str(call) if call else "", reason) if part]
        return f"[rank {self.rank}/{self.world_size}] {': '.join(parts)}"

    def check(self, call: Call) -> None:
        """Raise if the context is closed, or if a peer is in trouble already."""
        if self.failure is not None:
            raise CollectiveError(self.describe(call, f"the context was closed by an earlier failure: {self.failure}"))
        if self._closed:
            raise CollectiveError(self.describe(call, "the context is closed"))
        trouble = self.trouble()
        if trouble is not None:
            raise self.failed(trouble.error(self.describe(call, trouble.text)))

    def failed(self, error: AnyError, recoverable: bool = False) -> AnyError:
        """Close the context because of `error` and tell the peers; returns `error`, to be raised."""
        if self.failure is None:
            self.failure = str(error)
            self.recoverable = recoverable
            self.tell(str(error))
        return error

    def mark_closed(self) -> None:
        self._closed = True

    @property
    def is_closed(self) -> bool:
        return self._closed or self.failure is not None

    # What depends on the backend --------------------------------------------------------------------------------

    def trouble(self) -> Trouble | None:
        """The first thing that went wrong with any rank of the world."""
        return None

    def has_left(self, rank: int) -> Mapping[str, int] | None:
        """How many calls a rank had made on each group when it closed its context; None while it has not."""
        return None

    def tell(self, message: str) -> None:
        """Send `message` to all peers as the reason why this rank ends."""

    def leave(self, calls_made: Mapping[str, int], progress: Callable[[], None]) -> None:
        """Say that this rank makes no more calls, and wait until every peer has said so.

        `progress` is called now and then: it keeps messages of this rank moving.
        """

    def stop(self, ranks: Sequence[int] = ()) -> None:
        """Let go of everything held for the peers."""
