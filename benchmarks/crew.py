"""The parent's side of contenders: starts their processes and tells them what to do, one crew at a time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class CrewError(RuntimeError):
    """A crew's process ended, was silent for too long, or could not do what it was told."""


class Crew:
    """Processes that carry out every order together; between orders they sleep.

    programs  command lines, each with variables to add to the environment; each connects to the address that is
              appended to its arguments, as one rank or, under mpiexec, as several
    size      ranks in all
    cores     for each rank, the cores that `pin` keeps it to

    Raises CrewError when a program ends or does not connect in time. After an order without an answer the processes
    are killed, and every further order raises CrewError.
    """

    def __init__(
        self,
        programs: Sequence[tuple[Sequence[str], Mapping[str, str]]],
        size: int,
        cores: Sequence[Sequence[int]],
        timeout_s: float = 300,
    ) -> None:
        self.size = size
        self._cores = [list(own) for own in cores]
        self._folder = tempfile.TemporaryDirectory(prefix="crew-")
        address = str(Path(self._folder.name) / "orders")
        self._ranks: dict[int, tuple[socket.socket, Any]] = {}
        self.versions: dict[str, str] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(size)
        self._processes = [
            subprocess.Popen(
                [*words, address],
                env=environment(variables),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )
            for words, variables in programs
        ]
        try:
            self._accept(timeout_s)
        except BaseException:
            self.close()
            raise

    def prepare(self, name: str, options: Mapping[str, Any], timeout_s: float = 600) -> dict[str, Any]:
        """Load a contender on every rank and warm it up; rank 0's answer."""
        return self._order(timeout_s, order="prepare", name=name, options=dict(options))[0]

    def pin(self) -> None:
        """Keep every rank to its cores from now on."""
        for rank, cores in enumerate(self._cores):
            self._send(rank, {"order": "pin", "cores": cores})
        self._answers(60)

    def run(self, name: str, timeout_s: float = 600) -> dict[str, Any]:
        """Run a contender once on every rank together.

        seconds      from when the first rank began to when the last one ended
        processor_s  of all ranks and threads
        ranks        what each rank tells
        """
        ranks = self._order(timeout_s, order="run", name=name)
        return {
            "seconds": max(rank["ended"] for rank in ranks) - min(rank["began"] for rank in ranks),
            "processor_s": sum(rank["processor_s"] for rank in ranks),
            "ranks": ranks,
        }

    def save(self, name: str, path: Path) -> None:
        """Write rank 0's last result of a contender."""
        self._send(0, {"order": "save", "name": name, "path": str(path)})
        _check([self._answer(0, 60)])

    def close(self) -> None:
        """Let the processes end; safe to call twice."""
        for rank in self._ranks:
            with contextlib.suppress(OSError):
                self._send(rank, {"order": "stop"})
        self._end(grace_s=20 if self._ranks else 0)

    def _end(self, grace_s: float) -> None:
        """Kill what is still there after `grace_s`; the crew takes no orders any more."""
        for process in self._processes:
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for connection, lines in self._ranks.values():
            with contextlib.suppress(OSError):
                lines.close()
            connection.close()
        self._ranks.clear()
        self._listener.close()
        self._folder.cleanup()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self._listener.settimeout(0.5)
        while len(self._ranks) < self.size:
            ended = [process.args for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise CrewError(
                    f"{ended[0]} ended early" if ended else f"no connection within {timeout_s:.0f} s"
                )
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listener.accept()
                lines = connection.makefile("rw", encoding="utf-8")
                hello = json.loads(lines.readline())
                self._ranks[hello["rank"]] = connection, lines
                self.versions = hello["versions"]

    def _order(self, timeout_s: float, **order: Any) -> list[dict[str, Any]]:
        for rank in range(self.size):
            self._send(rank, order)
        return self._answers(timeout_s)

    def _send(self, rank: int, order: Mapping[str, Any]) -> None:
        if rank not in self._ranks:
            raise CrewError("its processes were ended after an earlier failure")
        lines = self._ranks[rank][1]
        lines.write(json.dumps(order) + "\n")
        lines.flush()

    def _answers(self, timeout_s: float) -> list[dict[str, Any]]:
        return _check([self._answer(rank, timeout_s) for rank in range(self.size)])

    def _answer(self, rank: int, timeout_s: float) -> dict[str, Any]:
        connection, lines = self._ranks[rank]
        connection.settimeout(timeout_s)
        try:
            line = lines.readline()
        except (TimeoutError, ConnectionError):
            line = None
        if not line:
            self._end(grace_s=0)
            reason = f"gave no answer within {timeout_s:.0f} s" if line is None else "ended"
            raise CrewError(f"rank {rank} of {self.size} {reason}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _check(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    errors = [answer["error"] for answer in answers if "error" in answer]
    if errors:
        raise CrewError(errors[0])
    return answers


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This environment with `variables`; nothing of an outer MPI launch comes through."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PMI", "OMPI_", "MPI_LOCAL"))
    }
    return {**ours, **variables}
