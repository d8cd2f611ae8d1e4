"""The only place where a rank waits for others: it yields the core, and looks for reasons to stop waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from edgedit.errors import CollectiveError
from edgedit.parallel.call import Call
from edgedit.parallel.monitor import Monitor
from edgedit.parallel.work import Work

# A peer in trouble may have done its part before: what it sent still counts if it is here within this time.
_LAST_CHANCE_S = 0.3
# A message of a peer that has left may still be on its way.
_IN_FLIGHT_S = 2.0


class Backoff:
    """Pauses that grow: some yields first, then sleeps up to `longest_s`."""

    def __init__(self, num_yields: int = 200, shortest_s: float = 10e-6, longest_s: float = 1e-3) -> None:
        self._num_yields = num_yields
        self._next_s = shortest_s
        self._longest_s = longest_s

    def pause(self) -> None:
        if self._num_yields:
            self._num_yields -= 1
            os.sched_yield()
        else:
            time.sleep(self._next_s)
            self._next_s = min(1.1 * self._next_s, self._longest_s)


def ready_within(ready: Callable[[], bool], seconds: float) -> bool:
    """Poll `ready` for at most `seconds`."""
    deadline, backoff = time.monotonic() + seconds, Backoff()
    while not ready():
        if time.monotonic() > deadline:
            return False
        backoff.pause()
    return True


class Polled(Work):
    """Work that is over when `ready` says so.

    `peers` are the world ranks it depends on; `missing` names, for messages, those that have not delivered yet.
    """

    def __init__(
        self, call: Call, monitor: Monitor, peers: Sequence[int], ready: Callable[[], bool],
        missing: Callable[[], list[int]],
    ) -> None:  # fmt: skip
        self._call = call
        self._monitor = monitor
        self._peers = list(peers)
        self._ready = ready
        self._missing = missing
        self._done = False

    def is_done(self) -> bool:
        if not self._done:
            self._done = self._ready()
        return self._done

    def wait(self) -> None:
        backoff = Backoff()
        self._monitor.waiting_in = self._call
        try:
            while not self.is_done():
                self._stop_for_trouble()
                self._stop_for_absent_peers()
                backoff.pause()
        finally:
            self._monitor.waiting_in = None

    def _stop_for_trouble(self) -> None:
        trouble = self._monitor.trouble()
        if trouble is not None and not ready_within(self.is_done, _LAST_CHANCE_S):
            missing = self._missing()
            raise self._monitor.lost(self._call, trouble, f"waiting for ranks {missing}" if missing else "")

    def _stop_for_absent_peers(self) -> None:
        to_peer = self._call.kind in ("send", "recv")
        for rank in self._peers:
            calls_made = self._monitor.has_left(rank)
            if calls_made is None or (
                not to_peer and calls_made.get(self._call.group, 0) >= self._call.sequence
            ):
                continue
            # It says goodbye after its last message, so only what is in flight can still come.
            if not ready_within(self.is_done, _IN_FLIGHT_S if to_peer else _LAST_CHANCE_S):
                reason = f"rank {rank} has closed its context without making this call"
                raise self._monitor.failed(CollectiveError(self._monitor.describe(self._call, reason)))
