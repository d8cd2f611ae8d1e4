"""What fuzzers share: the time they take, the limits that a reader has to keep, and how bytes are spoilt.

    EDGEDIT_FUZZ_S   seconds of all fuzzers together (default 24)
"""

from __future__ import annotations

import json
import os
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
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


def fuzz_made(make: Callable[[Random], Any], check: Callable[[Any], None], share: float) -> None:
    """As `fuzz`, of inputs that `make` draws: many more than hypothesis does."""
    deadline = time.monotonic() + share * SECONDS
    for number in count(int.from_bytes(os.urandom(4), "little")):
        made = make(Random(number))
        try:
            check(made)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__} for {made!r}") from error
        if time.monotonic() > deadline:
            return


def fuzz_bytes(
    whole: Sequence[bytes],
    words: Sequence[bytes],
    check: Callable[[bytes], None],
    share: float,
    repair: Callable[[bytes], bytes] = bytes,
) -> None:
    """`fuzz_made` with spoilt copies of `whole`.

    words   spelling that the format knows
    repair  mends lengths, so that a mishap behind them is reached; done to every other copy
    """

    def make(random: Random) -> bytes:
        content = spoilt(random, random.choice(whole), words)
        return repair(content) if random.random() < 0.5 else content

    fuzz_made(make, check, share)


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


# What may stand where a config has something else.
ODD_VALUES = [
    None, True, False, 0, 1, -1, 2, 3, 7, 1.5, 1e308, -0.0, 10**6, 1 << 31, 1 << 63, 10**30, 10**400,
    float("nan"), float("inf"), "", "x", "\ud800", "\x1b[2J", [], {}, [1], [None], [[1]], ["x"], [0] * 300,
    {"a": 1}, {"content": 3},
]  # fmt: skip


def odd_json(random: Random, whole: Any) -> bytes:
    """A JSON text: `whole` with one to three values replaced or left out; sometimes spoilt further as text."""
    value = json.loads(json.dumps(whole))
    for _ in range(random.randint(1, 3)):
        value = _with_odd_value(random, value)
    text = json.dumps(value).encode()
    return spoilt(random, text, [b"{", b"}", b"[", b",", b'"', b"null", b"1e999"]) if random.random() < 0.1 else text


def _with_odd_value(random: Random, value: Any) -> Any:
    places = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not places or random.random() < 0.1:
        return deepcopy(random.choice(ODD_VALUES))
    place = random.choice(places)
    if isinstance(value[place], (dict, list)) and random.random() < 0.6:
        value[place] = _with_odd_value(random, value[place])
    elif random.random() < 0.2:
        del value[place]
    else:
        value[place] = deepcopy(random.choice(ODD_VALUES))
    return value
