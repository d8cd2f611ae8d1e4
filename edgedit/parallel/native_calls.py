"""Collectives that native code makes while it runs a planned graph, as the rest of a context sees them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn

from edgedit import _native
from edgedit.errors import CollectiveError, EdgeditError, in_words
from edgedit.parallel.call import Call
from edgedit.parallel.monitor import Monitor
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.waiting import ready_within

# `Code` of csrc/transport/watch.hpp
_TROUBLE, _PEER_LEFT, _DEADLINE, _INTERRUPTED, _TRANSPORT = range(1, 6)
# How long the control channel may take to explain an error that the transport reports.
_EXPLANATION_S = 1.5


class NativeCalls:
    """One run of a native program, which makes `calls` in their order; a context manager around the run.

    calls    call templates: kind, dtype, count, label and group; `numbers[i]` is the program's number of the i-th
    program  a `_native.Program`; while it runs, the monitor asks it where this rank waits
    """

    def __init__(
        self, monitor: Monitor, groups: Mapping[str, ProcessGroup], program: Any, calls: Sequence[Call],
        numbers: Sequence[int], nbytes: Mapping[str, int],
    ) -> None:  # fmt: skip
        self._monitor = monitor
        self._groups = groups
        self._program = program
        self._calls = list(calls)
        self._numbers = list(numbers)
        self._nbytes = nbytes  # sent to other ranks in one run, by group

    def __enter__(self) -> NativeCalls:
        for call in self._calls[:1]:
            self._monitor.check(call)
        self._program.begin()
        self._monitor.native_calls = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._monitor.native_calls = None

    def count(self) -> None:
        """Add a finished run to what the groups have counted."""
        for name, calls in Counter(call.group for call in self._calls).items():
            self._groups[name].count_native(calls, self._nbytes[name])

    def state(self, calls_made: Mapping[str, int]) -> tuple[Call | None, dict[str, int]]:
        """Where this rank waits now, and how many calls it has made by group. Any thread may ask."""
        waiting, started = self._program.waiting_in, self._program.started
        made = Counter(call.group for call in self._calls[:started])
        in_all = {name: calls_made.get(name, 0) + made[name] for name in {*calls_made, *made}}
        return (None if waiting < 0 else self._numbered(self._numbers.index(waiting))), in_all

    def fail(self) -> NoReturn:
        """Raise what ended the run, after closing the context because of it."""
        code, number, missing, text = self._program.failure()
        monitor = self._monitor
        call = self._call_at_end(number)
        if code == _INTERRUPTED:
            self._raise_interrupt(call)
        if code == _TRANSPORT:
            ready_within(lambda: monitor.trouble() is not None, _EXPLANATION_S)
        trouble = monitor.trouble()
        if trouble is not None:
            raise monitor.lost(call, trouble, f"waiting for ranks {missing}" if missing else "")
        left = [rank for rank in missing if monitor.has_left(rank) is not None]
        if code == _PEER_LEFT and left:
            text = f"rank {left[0]} has closed its context without making this call"
        elif code == _DEADLINE:
            text = f"waiting for ranks {missing} took too long"
        raise monitor.failed(CollectiveError(monitor.describe(call, text or f"ended with code {code}")))

    def _call_at_end(self, number: int) -> Call | None:
        """The call that failed; for a run that ended in between (`number` is -1), the one that was to come next."""
        if not self._calls:
            return None
        last = len(self._calls) - 1
        return self._numbered(
            self._numbers.index(number) if number >= 0 else min(self._program.started, last)
        )

    def _numbered(self, position: int) -> Call:
        """The call at a position of this run, with its number in its group."""
        call = self._calls[position]
        before = sum(earlier.group == call.group for earlier in self._calls[:position])
        sequence = self._monitor.calls_made.get(call.group, 0) + before + 1
        return Call(call.kind, sequence, call.dtype, call.count, label=call.label, group=call.group)

    def _raise_interrupt(self, call: Call | None) -> NoReturn:
        try:
            _native.raise_interrupt()
        except BaseException as error:
            # The exchange is broken off in the middle: nothing can go on from here, neither here nor on the peers.
            self._monitor.failed(EdgeditError(self._monitor.describe(call, in_words(error))))
            raise
        raise AssertionError("an interrupt without an exception")
