"""The parallel state of a run: this rank's place in the mesh and its groups."""

from __future__ import annotations

import ctypes
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from edgedit import kernels
from edgedit.config import AXES, DEVICE_BACKENDS, ParallelConfig
from edgedit.errors import EdgeditError, PeerLostError, in_words
from edgedit.parallel import cuda
from edgedit.parallel.backends.local import Hub, LocalGroup, LocalMonitor
from edgedit.parallel.backends.none import NoneGroup
from edgedit.parallel.call import Call
from edgedit.parallel.mesh import WEIGHTS, WORLD, Mesh
from edgedit.parallel.monitor import Monitor, Trouble
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.timeline import Timeline, clock
from edgedit.parallel.times import RunTimes

if TYPE_CHECKING:
    from edgedit.parallel.native_calls import NativeCalls

Result = TypeVar("Result")


class ParallelContext:
    """A group per axis, per overlay, and of the world. Made once, shared by models and pipelines, closed explicitly.

    Making it is a call that all ranks make together. Raises `EdgeditError` where the launch does not fit MPI, the
    ranks were given different settings or one of them cannot run the kernels; `ValueError` for kernels that one rank
    alone cannot run. Any failure of a collective closes the context; a new one can be made if the
    ranks themselves are well. While it is open, an uncaught exception of one rank ends all ranks.
    """

    def __init__(self, config: ParallelConfig | None = None, *, _hub: Hub | None = None) -> None:
        self.config = config or ParallelConfig()
        self.mesh = Mesh(self.config)
        self.rank = self.config.rank
        self.world_size = self.config.world_size
        self.coords = self.mesh.coords(self.rank)
        self.times = RunTimes()  # of everything that ran in this context
        self.timeline: Timeline | None = None  # what runs is profiled while there is one
        self._joined: Any = None
        self._monitor: Monitor
        self._groups: dict[str, ProcessGroup] = {}
        if self.config.backend in DEVICE_BACKENDS:
            cuda.check_usable()
        if self.config.backend in ("auto", "mpi", "shm", *DEVICE_BACKENDS):
            from edgedit.parallel.joining import Joined

            self._joined = Joined(self.config, self.mesh, self.close)
            self._monitor = self._joined.monitor
            self.config = replace(self.config, backend=self._joined.backend, kernels=self._joined.kernels)
        elif self.config.backend == "local":
            if _hub is None:
                raise ValueError(
                    "backend local runs ranks as threads of one process: use ParallelContext.local"
                )
            self._monitor = LocalMonitor(self.mesh, self.rank, _hub)
        else:
            self._monitor = Monitor(self.rank, self.world_size)
        if self._joined is None:
            self.config = replace(self.config, kernels=kernels.chosen(self.config.kernels))
        try:
            for axis in (WORLD, *AXES, *self.mesh.overlays, WEIGHTS):
                self._groups[axis] = self._make_group(axis)
        except BaseException as error:
            # Ranks of other groups may be making the next one, and would wait for this rank.
            self._monitor.failed(EdgeditError(self._monitor.describe(None, in_words(error))))
            self._let_go()
            raise

    @classmethod
    def local(cls, world_size: int, fn: Callable[[ParallelContext], Result], **options: Any) -> list[Result]:
        """Run `fn(context)` as `world_size` ranks in threads of this process; returns the results by rank.

        `options` are fields of `ParallelConfig`; without degrees, all ranks are one Ulysses group. Raises the error of
        the rank that failed first.
        """
        if not any(name.endswith("_degree") for name in options):
            options["ulysses_degree"] = world_size
        hub = Hub()
        results: list[Any] = [None] * world_size
        errors: list[BaseException] = []

        def run(rank: int) -> None:
            try:
                config = ParallelConfig(
                    **{"backend": "local", **options}, rank=rank, world_size=world_size,
                    local_rank=rank, local_world_size=world_size,
                )  # fmt: skip
                with cls(config, _hub=hub) as context:
                    results[rank] = fn(context)
            except BaseException as error:
                errors.append(error)
                hub.failures.append((rank, Trouble(PeerLostError, f"rank {rank} failed: {error!r}")))

        threads = [
            threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(world_size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    def group(self, axis: str) -> ProcessGroup:
        """This rank's group on `axis` (tp, ulysses, ring, kv_gather, cfg, dp or world); of size 1 on an unused axis.

        The overlays vae and text_encoder are groups too: the first ranks together, and each of the others alone; so are
        weights: ranks that keep shares of the same ones.
        """
        if axis not in self._groups:
            raise ValueError(f"unknown axis {axis!r}; legal: {', '.join(self._groups)}")
        return self._groups[axis]

    @property
    def bytes_sent(self) -> int:
        """Payload that this rank has sent to others, on all groups."""
        return sum(group.bytes_sent for group in self._groups.values())

    @property
    def is_closed(self) -> bool:
        return self._monitor.is_closed

    def note(self, step: int | None = None, phase: str | None = None) -> None:
        """Say where the run is (step index, phase such as "denoise"); failures report it, here and on the peers."""
        self._monitor.note(step, phase)
        if self.timeline is not None:
            self.timeline.note(step, phase)

    def agree(self, label: str, lines: Sequence[str], axis: str = WORLD) -> None:
        """Return if all ranks of `axis` pass the same lines.

        Raises `EdgeditError` on every rank otherwise, naming the first line that differs and two ranks.
        """
        group = self.group(axis)
        text = "\n".join(lines)
        digests = group.exchange(hashlib.sha256(text.encode()).digest(), label=label)
        if len(set(digests)) == 1:
            return
        texts = [data.decode().split("\n") for data in group.exchange(text.encode(), label=label)]
        for theirs, rank in zip(texts[1:], group.ranks[1:], strict=True):
            if theirs != texts[0]:
                self._fail(label, difference(texts[0], theirs, group.ranks[0], rank), group)
        raise AssertionError(f"{label}: digests differ but lines do not")

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """The JSON value of world rank `root`, on every rank."""
        data = json.dumps(value).encode() if self.rank == root else b""
        return json.loads(self.group(WORLD).exchange(data, label="broadcast_object")[root])

    @contextmanager
    def exchanging(self, group: ProcessGroup, kind: str, name: str, dtype: str) -> Iterator[None]:
        """Count what runs inside as exchange or, while it waits for peers, as waiting."""
        began, waited_before_s, sent_before = clock(), group.waited_s, group.bytes_sent
        yield
        ended, waited_s = clock(), group.waited_s - waited_before_s
        self.times.add(RunTimes(0.0, ended - began - waited_s, waited_s))
        if self.timeline is not None:
            sent = group.bytes_sent - sent_before
            self.timeline.add_exchange(kind, name, "start", group.name, dtype, sent, began, ended, waited_s)

    def native_program(self) -> Any:
        """A `_native.Program`, empty, that watches over the ranks of this context while it waits."""
        from edgedit import _native

        return _native.Program(ctypes.addressof(self._monitor.signs), self.world_size)

    def native_calls(
        self, program: Any, calls: Sequence[Call], numbers: Sequence[int], nbytes: Mapping[str, int]
    ) -> NativeCalls:
        """The runs of a program from `native_program`, see `NativeCalls`."""
        from edgedit.parallel.native_calls import NativeCalls

        groups = {call.group: self.group(call.group) for call in calls}
        return NativeCalls(self._monitor, groups, program, calls, numbers, nbytes)

    def close(self) -> None:
        """Wait until all ranks are done with the context, and free it. Raises if one of them fails instead."""
        if self._monitor.is_closed:
            self._let_go()
            return
        try:
            self._monitor.leave(self._progress)
            for group in self._groups.values():
                group.close()
        finally:
            self._monitor.mark_closed()
            self._let_go()

    def __enter__(self) -> ParallelContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self._monitor.is_closed and not _is_success(error):
            self._monitor.failed(EdgeditError(self._monitor.describe(None, in_words(error))))
        self.close()

    def _make_group(self, axis: str) -> ProcessGroup:
        ranks = self.mesh.group_of(axis, self.rank)
        if len(ranks) == 1:
            return NoneGroup(axis, ranks, self.rank, self._monitor)
        if isinstance(self._monitor, LocalMonitor):
            return LocalGroup(axis, ranks, self.rank, self._monitor)
        group: ProcessGroup = self._joined.make_group(axis, ranks)
        return group

    def _progress(self) -> None:
        if self._joined is not None:
            self._joined.progress()

    def _let_go(self) -> None:
        joined, self._joined = self._joined, None
        if joined is not None:
            joined.let_go()

    def _fail(self, label: str, reason: str, group: ProcessGroup) -> NoReturn:
        error = EdgeditError(self._monitor.describe(None, f"the ranks disagree on {label}: {reason}"))
        raise self._monitor.failed(error, recoverable=group.size == self.world_size)


def difference(ours: Sequence[str], theirs: Sequence[str], our_rank: int, their_rank: int) -> str:
    """The first line in which two ranks differ, with both versions."""
    for index in range(max(len(ours), len(theirs))):
        first, second = (lines[index] if index < len(lines) else "nothing" for lines in (ours, theirs))
        if first != second:
            return f"line {index + 1} is '{first}' on rank {our_rank} and '{second}' on rank {their_rank}"
    raise AssertionError("the lines do not differ")


def _is_success(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0)
