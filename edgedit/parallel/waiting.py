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
# A look at work that takes longer than this has moved bytes.
_IDLE_LOOK_S = 50e-6


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
    `moved_s` gives the seconds that whatever `ready` asks has spent moving bytes so far. Without it, looks that find
    the work done or take long are taken for that.
    """

    def __init__(
        self, call: Call, monitor: Monitor, peers: Sequence[int], ready: Callable[[], bool],
        missing: Callable[[], list[int]], moved_s: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self._call = call
        self._monitor = monitor
        self._peers = list(peers)
        self._ready = ready
        self._missing = missing
        self._moved_s = moved_s or self._seconds_of_long_looks
        self._long_looks_s = 0.0
        self._done = False

    def is_done(self) -> bool:
        if not self._done:
            began = time.perf_counter()
            self._done = self._ready()
            look_s = time.perf_counter() - began
            if self._done or look_s > _IDLE_LOOK_S:
                self._long_looks_s += look_s
        return self._done

    def wait(self) -> None:
        began, moved_before_s = time.perf_counter(), self._moved_s()
        backoff = Backoff()
        self._monitor.waiting_in = self._call
        try:
            while not self.is_done():
                self._stop_for_trouble()
                self._stop_for_absent_peers()
                backoff.pause()
        finally:
            self._monitor.waiting_in = None
            moved_s = self._moved_s() - moved_before_s
            self._monitor.waited_s += max(0.0, time.perf_counter() - began - moved_s)

    def _seconds_of_long_looks(self) -> float:
        return self._long_looks_s

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
