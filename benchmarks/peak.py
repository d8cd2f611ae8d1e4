"""The share of the processor's peak: a loop of fused multiply-adds that takes its turn like a contender."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from pathlib import Path

SOURCE = Path(__file__).with_name("peak.c")
ROUNDS = 150_000_000  # some 0.3 s


def compiler_of_c() -> str | None:
    """The C compiler of this host; None where there is none."""
    return os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def compile_peak(folder: Path) -> Path | None:
    """The loop as a library in `folder`; None where there is no C compiler."""
    compiler = compiler_of_c()
    if compiler is None:
        return None
    library = folder / "peak.so"
    words = [
        compiler,
        "-O2",
        "-march=native",
        "-ffp-contract=fast",
        "-shared",
        "-fPIC",
        "-o",
        library,
        SOURCE,
    ]
    subprocess.run(words, check=True)
    return library


class Peak:
    """`rounds` of the loop, shared by the threads; `flops` are those of a call."""

    def __init__(self, library: Path, threads: int = 1, rounds: int = ROUNDS) -> None:
        self._run = ctypes.CDLL(str(library)).peak_run
        self._run.argtypes = [ctypes.c_longlong, ctypes.POINTER(ctypes.c_float)]
        self._run.restype = ctypes.c_longlong
        self._rounds = rounds // threads
        self._threads = threads
        self.flops = threads * self._rounds * self._loop(1)

    def __call__(self) -> None:
        others = [threading.Thread(target=self._loop, args=(self._rounds,)) for _ in range(self._threads - 1)]
        for other in others:
            other.start()
        self._loop(self._rounds)
        for other in others:
            other.join()

    def _loop(self, rounds: int) -> int:
        flops: int = self._run(rounds, ctypes.byref(ctypes.c_float()))
        return flops
