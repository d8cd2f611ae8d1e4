"""What fuzzers share: the time they take, the limits that a reader has to keep, and how bytes are spoilt.

    EDGEDIT_FUZZ_S   seconds of all fuzzers together (default 24)
"""

from __future__ import annotations

import os
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

SECONDS = float(os.environ.get("EDGEDIT_FUZZ_S", "24"))
EXAMPLES = 100  # of a round
PROCESSOR_S = 5  # more than any reader needs for a few kilobytes, however slow the machine
MEMORY_RATIO = 64  # JSON objects take some 30 bytes for each byte of text
MEMORY_NBYTES = 1 << 20

INTERESTING = sorted(
    {0, 1, 7, 8, 255, 1 << 16, (1 << 24) - 1, 10**9}
    | {(1 << bits) + offset for bits in (31, 32, 40, 63) for offset in (-1, 0, 1)}
    | {(1 << 64) - 1, (1 << 64) - 8, (1 << 64) - 32}
)


class Unbounded(BaseException):
    """Not an Exception, so that no reader can swallow it."""


@contextmanager
def bounded(nbytes: int) -> Iterator[None]:
    """AssertionError where the block takes seconds of the processor, or memory out of proportion to its input."""

    def stop(*_: Any) -> None:
        raise Unbounded

    before = signal.signal(signal.SIGPROF, stop)
    tracemalloc.start()
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_S)
    try:
        yield
    except Unbounded:
        raise AssertionError(f"more than {PROCESSOR_S} s for {nbytes} bytes") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        signal.signal(signal.SIGPROF, before)
    limit = MEMORY_RATIO * nbytes + MEMORY_NBYTES
    assert peak <= limit, f"{peak} bytes of memory for an input of {nbytes}; the limit is {limit}"


def write(path: Path, content: bytes) -> None:
    """A new file: cutting an old one makes some file systems wait for the disk."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def fuzz(inputs: st.SearchStrategy[Any], check: Callable[[Any], None], share: float) -> None:
    """Call `check` with new inputs for `share` of all fuzzers' seconds; what fails is made small and shown."""
    deadline = time.monotonic() + share * SECONDS
    while True:
        options = settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )

        @seed(int.from_bytes(os.urandom(8), "little"))
        @options
        @given(inputs)
        def one_round(value: Any) -> None:
            check(value)

        one_round()
        if time.monotonic() > deadline:
            return


def fuzz_bytes(
    whole: Sequence[bytes],
    words: Sequence[bytes],
    check: Callable[[bytes], None],
    share: float,
    repair: Callable[[bytes], bytes] = bytes,
) -> None:
    """Call `check` with spoilt copies of `whole` for `share` of all fuzzers' seconds: many more than hypothesis draws.

    words   spelling that the format knows
    repair  mends lengths, so that a mishap behind them is reached; done to every other copy
    """
    start = int.from_bytes(os.urandom(4), "little")
    deadline = time.monotonic() + share * SECONDS
    for number in count(start):
        random = Random(number)
        content = spoilt(random, random.choice(whole), words)
        if number % 2:
            content = repair(content)
        try:
            check(content)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} for the bytes {content!r}") from error
        if time.monotonic() > deadline:
            return


def spoilt(random: Random, whole: bytes, words: Sequence[bytes]) -> bytes:
    """`whole` after one to four mishaps."""
    content = bytearray(whole)
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(content))
        span = random.randint(1, 40)
        word = random.choice(words)
        number = random.choice([random.choice(INTERESTING), random.getrandbits(64), random.randint(0, 300)])
        match random.randint(0, 9):
            case 0:
                content[at : at + 1] = bytes([random.choice(whole)])
            case 1 if at < len(content):
                content[at] ^= 1 << random.randint(0, 7)
            case 2 if random.random() < 0.3:
                del content[at:]
            case 3:
                del content[at : at + span]
            case 4:
                content[at:at] = content[at : at + span]
            case 5:
                content[at:at] = word
            case 6:
                content[at : at + 1] = random.randbytes(1)
            case 7:
                content[at : at + len(word)] = word
            case 8:
                content[at : at + 4] = (number % (1 << 32)).to_bytes(4, "little")
            case 9:
                content[at : at + 8] = number.to_bytes(8, "little")
    return bytes(content)
