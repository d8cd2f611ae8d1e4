"""How a rank of several ends: an uncaught error on one rank ends all of them, and no rank hangs on its way out."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType

from edgedit.errors import CollectiveTimeout, EdgeditError, PeerLostError
from edgedit.parallel.backends import mpi
from edgedit.parallel.monitor import Monitor

# How long the peers get to report the failure themselves, and the launcher to forward it, before all are ended.
_REPORT_S = 0.5
_ABORT_S = 3.0

_current: Guard | None = None
_finalize_would_hang = False


class Guard:
    """Watches over the ways out of this process from the start of MPI on, while a context is open or has failed."""

    def __init__(self, monitor: Monitor) -> None:
        global _current
        self._monitor = monitor
        self._close: Callable[[], None] | None = None
        sys.excepthook = self._on_exception
        if _current is None:
            atexit.register(_at_exit)
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        ):
            signal.signal(signal.SIGTERM, _raise_interrupt)
        _current = self

    def watch(self, monitor: Monitor, close: Callable[[], None]) -> None:
        """From now on the ranks know each other: `monitor` tells them of failures, `close` parts from them."""
        self._monitor = monitor
        self._close = close

    def release(self) -> None:
        """The context was closed in order: this process may end as it likes."""
        sys.excepthook = sys.__excepthook__
        if signal.getsignal(signal.SIGTERM) is _raise_interrupt:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def close_if_open(self) -> None:
        """Close a context that the program left open. Raises `EdgeditError` if a peer fails instead."""
        if self._close is not None and not self._monitor.is_closed:
            self._close()

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        monitor = self._monitor
        reason = monitor.without_prefix("".join(traceback.format_exception_only(kind, error)).strip())
        # Where another rank is the cause, or the user, it is not this rank's stack that explains anything.
        if issubclass(kind, (PeerLostError, CollectiveTimeout)):
            report = monitor.without_prefix(str(error))
        elif issubclass(kind, KeyboardInterrupt):
            report = reason
        else:
            report = "".join(traceback.format_exception(kind, error, trace))
        sys.stderr.write("".join(f"{monitor.prefix()}{line}\n" for line in report.splitlines()))
        if monitor.failure is None:
            monitor.failed(EdgeditError(monitor.describe(None, reason)))
        time.sleep(_REPORT_S)
        # Abort goes through the launcher; should that not answer, this rank ends all the same.
        timer = threading.Timer(_ABORT_S, os._exit, (1,))
        timer.daemon = True
        timer.start()
        mpi.abort(1)


def finalize_would_hang() -> None:
    """Note that MPI must not be finalised: a peer is gone, or a message of this rank was never delivered."""
    global _finalize_would_hang
    _finalize_would_hang = True


def _raise_interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"terminated by {signal.Signals(signum).name}")


def _at_exit() -> None:
    """Before mpi4py finalises MPI, which with a dead or absent peer never returns."""
    try:
        if _current is not None:
            _current.close_if_open()
    except EdgeditError as error:
        print(error, file=sys.stderr)
    if _finalize_would_hang:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_REPORT_S)
        os._exit(1)
