"""How much memory of its own a process takes at most."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

_STATUS = Path("/proc/self/status")
_INTERVAL_S = 0.02


class PeakMemory:
    """The most anonymous memory (not files, not what ranks share) that was seen in use, in bytes.

    While it is open as a context manager, a thread looks; `look` does so once. 0 where the system does not tell.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak memory", daemon=True)

    def look(self) -> None:
        self.nbytes = max(self.nbytes, anonymous_nbytes())

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            self.look()

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.look()


def anonymous_nbytes() -> int:
    """Anonymous memory of this process that is in RAM."""
    try:
        status = _STATUS.read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
