"""The side of a contender: a process that prepares and runs things when it is told, and sleeps in between.

Orders and answers are lines of JSON over a socket of the file system. Nothing here needs edgedit, so that a peer's
interpreter can run it.

    {"order": "prepare", "name": ..., "options": {...}}   load and warm up: {"load_s": ..., "warmup_s": ..., ...}
    {"order": "pin", "cores": [...]}                      keep every thread to these cores
    {"order": "run", "name": ...}                         {"began": ..., "ended": ..., "processor_s": ..., ...}
    {"order": "save", "name": ..., "path": ...}           the last result, as a file of numpy
    {"order": "stop"}

An order that fails is answered by {"error": ...}.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass
class Contender:
    """What is measured: `run` after `line_up`, which returns on all ranks of the contender at about the same time."""

    run: Callable[[], np.ndarray | None]
    line_up: Callable[[], None] = lambda: None
    run_details: Callable[[], dict[str, Any]] = dict  # of the last run
    details: dict[str, Any] = field(default_factory=dict)
    first_runs: int = 1  # until a run takes as long as any later one


class Rank:
    """Carries out the orders of one parent."""

    def __init__(self, prepare: Callable[[dict[str, Any]], Contender]) -> None:
        self._prepare = prepare
        self._contenders: dict[str, Contender] = {}
        self._results: dict[str, np.ndarray | None] = {}

    def prepare(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        contender = self._contenders[name] = self._prepare(options)
        for _ in range(contender.first_runs):
            last = self.run(name)
        return {
            "load_s": last["began"] - began,
            "warmup_s": last["ended"] - last["began"],
            **contender.details,
        }

    def run(self, name: str) -> dict[str, Any]:
        contender = self._contenders[name]
        contender.line_up()
        processor, began = time.process_time(), time.perf_counter()
        self._results[name] = contender.run()
        ended, used = time.perf_counter(), time.process_time() - processor
        return {"began": began, "ended": ended, "processor_s": used, **contender.run_details()}

    def save(self, name: str, path: str) -> dict[str, Any]:
        np.save(path, self._results[name])
        return {}

    def pin(self, cores: list[int]) -> dict[str, Any]:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it may have ended
                os.sched_setaffinity(int(thread.name), cores)
        return {}


def serve(
    address: str, rank: int, versions: dict[str, str], prepare: Callable[[dict[str, Any]], Contender]
) -> None:
    """Carry out orders until told to stop, or until the parent is gone."""
    carries_out = Rank(prepare)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        lines = connection.makefile("rw", encoding="utf-8")
        _write(lines, {"rank": rank, "versions": versions})
        for line in lines:
            order = json.loads(line)
            what = order.pop("order")
            if what == "stop":
                return
            try:
                answer = getattr(carries_out, what)(**order)
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            _write(lines, answer)


def _write(lines: Any, message: dict[str, Any]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()
