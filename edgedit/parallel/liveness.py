"""Who is alive: heartbeats over a control channel apart from MPI, watched by a thread of their own.

The thread learns of a death from the closed connection, of a failure from the message that the peer sends, and of a
peer that is stopped from its silence; a peer that is slow keeps its thread beating and is waited for. If the main
thread does not take notice in time (it may be inside a long native call), the thread ends the process.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgedit.errors import CollectiveError, CollectiveTimeout, PeerLostError
from edgedit.parallel.deadlock import DeadlockDetector, Report
from edgedit.parallel.mesh import Mesh
from edgedit.parallel.monitor import Monitor, Trouble
from edgedit.parallel.waiting import Backoff
from edgedit.parallel.wire import Connection

# How long the main thread may take to notice that the run is over.
_GRACE_S = 3.0
_LONGEST_BEAT_S = 0.25
_ERRORS = {error.__name__: error for error in (CollectiveError, PeerLostError, CollectiveTimeout)}


class PeerMonitor(Monitor):
    """The monitor of a rank with a process to itself; `connections` lead to all other ranks."""

    def __init__(self, mesh: Mesh, rank: int, connections: Sequence[Connection], timeout_s: float) -> None:
        super().__init__(rank, mesh.world_size)
        self._timeout_s = timeout_s
        self._beat_s = min(_LONGEST_BEAT_S, timeout_s / 8)
        self._connections = {connection.rank: connection for connection in connections}
        self._last_seen_s = {peer: time.monotonic() for peer in self._connections}
        self._peer_is_at: dict[int, str] = {}
        self._reports: dict[int, Report] = {}
        self._num_beats = 0
        self._detector = DeadlockDetector(rank, mesh.group_of)
        self._left: dict[int, dict[str, int]] = {}
        self._trouble: Trouble | None = None
        self._trouble_since_s = 0.0
        self._noticed = threading.Event()  # the main thread knows that the run is over
        self._stopping = threading.Event()
        self._lock = threading.RLock()  # guards the connections
        self._bell, self._bell_rope = socket.socketpair()  # wakes the thread up for `stop`
        self._thread = threading.Thread(target=self._watch, name="edgedit-liveness", daemon=True)
        self._thread.start()

    # Called by the main thread ----------------------------------------------------------------------------------

    def trouble(self) -> Trouble | None:
        return self._trouble

    def has_left(self, rank: int) -> Mapping[str, int] | None:
        return self._left.get(rank)

    def tell(self, trouble: Trouble) -> None:
        self._noticed.set()
        self._post({"type": "failed", "error": trouble.error.__name__, "text": trouble.text})

    def leave(self, progress: Callable[[], None]) -> None:
        self._post({"type": "left", "calls_made": self.calls_made})
        backoff = Backoff()
        while len(self._left) < len(self._connections):
            trouble = self._trouble
            if trouble is not None:
                raise self.lost(None, trouble, "closing the context")
            progress()
            backoff.pause()

    def stop(self) -> None:
        self._noticed.set()
        self._stopping.set()
        self._bell_rope.close()
        self._thread.join()
        self._bell.close()
        with self._lock:
            for connection in self._connections.values():
                connection.flush()
                connection.close()

    # The thread -------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._bell, selectors.EVENT_READ, None)
            for connection in self._connections.values():
                selector.register(connection.sock, selectors.EVENT_READ, connection)
            next_beat_s = last_look_s = time.monotonic()
            while not self._stopping.is_set():
                for key, _ in selector.select(max(0.0, next_beat_s - time.monotonic())):
                    if key.data is not None and not self._listen(key.data):
                        selector.unregister(key.fileobj)
                now_s = time.monotonic()
                self._forgive_own_absence(now_s - last_look_s)
                last_look_s = now_s
                if now_s >= next_beat_s:
                    self._beat()
                    next_beat_s = now_s + self._beat_s
                self._look_for_silence(now_s)
                self._end_if_unnoticed(now_s)

    def _listen(self, connection: Connection) -> bool:
        """Take in what a peer says; False when nothing more can come."""
        with self._lock:
            messages = connection.read()
        peer = connection.rank
        self._last_seen_s[peer] = time.monotonic()
        for message in messages:
            kind = message.get("type")
            if kind == "beat":
                self._peer_is_at[peer] = str(message["where"])
                self._reports[peer] = Report(*message["report"])
            elif kind == "left":
                self._left[peer] = {str(name): int(count) for name, count in message["calls_made"].items()}
                self.signs[peer] = 1
            elif kind == "failed":
                error = _ERRORS.get(str(message.get("error")), PeerLostError)
                self._set_trouble(Trouble(error, str(message.get("text"))))
        if not connection.is_open and peer not in self._left:
            self._set_trouble(Trouble(PeerLostError, f"rank {peer} died{self._last_known(peer)}"))
        return connection.is_open

    def _beat(self) -> None:
        self._num_beats += 1
        report = self._reports[self.rank] = self.report(self._num_beats)
        circle = self._detector.look(self._reports) if report.group else None
        if circle:
            self._set_trouble(Trouble(CollectiveError, circle))
        message = {"type": "beat", "where": self.where(), "report": report}
        with self._lock:
            for connection in self._connections.values():
                # A peer that does not read keeps the beats it has; more would only pile up.
                if connection.has_backlog:
                    connection.flush()
                else:
                    connection.post(message)

    def _forgive_own_absence(self, seconds: float) -> None:
        """While this process was stopped it could not hear anybody: that silence is its own."""
        if seconds > 4 * self._beat_s:
            for peer in self._last_seen_s:
                self._last_seen_s[peer] += seconds

    def _look_for_silence(self, now_s: float) -> None:
        for peer, seen_s in self._last_seen_s.items():
            if now_s - seen_s > self._timeout_s and peer not in self._left:
                text = f"rank {peer} showed no sign of life for {self._timeout_s:g} s{self._last_known(peer)}"
                self._set_trouble(Trouble(CollectiveTimeout, text))

    def _set_trouble(self, trouble: Trouble) -> None:
        if self._trouble is None:
            self._trouble_since_s = time.monotonic()
            self._trouble = trouble
            self.signs[self.world_size] = 1

    def _last_known(self, peer: int) -> str:
        where = self._peer_is_at.get(peer)
        return f" (it was at {where})" if where else ""

    def _end_if_unnoticed(self, now_s: float) -> None:
        if self._trouble is None or self._noticed.is_set() or now_s - self._trouble_since_s < _GRACE_S:
            return
        message = self.describe(
            None, f"{self._trouble.text}; this rank is busy, and ends without finishing that"
        )
        self.tell(self._trouble)
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, (message + "\n").encode())
        os._exit(1)

    def _post(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            for connection in self._connections.values():
                connection.post(message)
