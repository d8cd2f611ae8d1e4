"""What a group knows about its peers besides their data: who died, who failed, who has left, and where this rank is."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

from edgedit.errors import CollectiveError, EdgeditError, PeerLostError
from edgedit.parallel.call import Call
from edgedit.parallel.deadlock import Report

AnyError = TypeVar("AnyError", bound=EdgeditError)


class Trouble(NamedTuple):
    """Why no collective will finish any more."""

    error: type[CollectiveError]
    text: str


class NativeState(Protocol):
    """What native code that makes the calls of a run knows of them."""

    def state(self, calls_made: Mapping[str, int]) -> tuple[Call | None, dict[str, int]]:
        """The call that this rank waits in, and the calls made by group, those before the run included."""


class Monitor:
    """The state of one context that its groups share. This base serves a single rank: nothing can happen to peers."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.failure: str | None = None  # set once; the context is closed from then on
        self.recoverable = True  # whether the backend survives the failure, so that a new context can be made
        self.calls_made: dict[str, int] = {}  # collectives begun, by group
        self.waiting_in: Call | None = None
        self.waited_s = 0.0  # for peers, in calls that Python makes
        # What native code looks at while it waits: not 0 where a rank has left; last, where no collective will finish.
        self.signs = (ctypes.c_int32 * (world_size + 1))()
        self.native_calls: NativeState | None = None  # while native code makes the calls
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
        return self.prefix() + ": ".join(parts)

    def check(self, call: Call) -> None:
        """Raise if the context is closed, or if a peer is in trouble already."""
        if self.failure is not None:
            raise CollectiveError(
                self.describe(call, f"the context was closed by an earlier failure: {self.failure}")
            )
        if self._closed:
            raise CollectiveError(self.describe(call, "the context is closed"))
        trouble = self.trouble()
        if trouble is not None:
            raise self.lost(call, trouble)

    def lost(self, call: Call | None, trouble: Trouble, waiting_for: str = "") -> CollectiveError:
        """Close the context because of a peer; returns the error, to be raised."""
        reason = f"{trouble.text}; {waiting_for}" if waiting_for else trouble.text
        return self.failed(trouble.error(self.describe(call, reason)), cause=trouble)

    def failed(self, error: AnyError, recoverable: bool = False, cause: Trouble | None = None) -> AnyError:
        """Close the context because of `error` and tell the peers; returns `error`, to be raised.

        `cause` is the trouble of another rank that led to it: what the peers are told then, so that all name the same.
        """
        if self.failure is None:
            self.failure = str(error)
            self.recoverable = recoverable
            self.tell(
                cause or Trouble(PeerLostError, f"rank {self.rank} failed: {self.without_prefix(str(error))}")
            )
        return error

    def prefix(self) -> str:
        return f"[rank {self.rank}/{self.world_size}] "

    def without_prefix(self, message: str) -> str:
        return message.removeprefix(self.prefix())

    def report(self, number: int) -> Report:
        """What this rank says of itself to those who look for deadlocks."""
        call, calls_made = self.waiting_in, dict(self.calls_made)
        native_calls = self.native_calls
        if native_calls is not None:
            call, calls_made = native_calls.state(calls_made)
        # A message between two ranks may be under way already, so a wait for one proves nothing.
        if call is None or call.kind in ("send", "recv"):
            return Report(number, "", 0, "", calls_made)
        return Report(number, call.group, call.sequence, str(call), calls_made)

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

    def tell(self, trouble: Trouble) -> None:
        """Let all peers know why no collective will finish any more."""

    def leave(self, progress: Callable[[], None]) -> None:
        """Say that this rank makes no more calls, and wait until every peer has said so.

        `progress` is called now and then: it keeps messages of this rank moving.
        """

    def stop(self) -> None:
        """Let go of everything held for the peers."""
