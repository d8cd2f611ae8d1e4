"""Segments that ranks share: every rank sees what the others write, or all are told why not."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedit import _native
from edgedit.errors import EdgeditError
from edgedit.parallel import shared_memory
from edgedit.parallel.context import ParallelContext


def share_and_write(context: ParallelContext) -> list[bytes]:
    """Every rank writes its name into the segments of all; returns what stands in its own."""
    group = context.group("world")
    nbytes = 16 * group.size + group.rank  # not all alike
    memory = shared_memory.share(nbytes, group.rank, group.exchange)
    assert ctypes.string_at(memory.addresses[group.rank], nbytes) == bytes(nbytes)
    group.barrier()
    for address in memory.addresses:
        ctypes.memmove(address + 16 * group.rank, f"rank {group.rank}".encode().ljust(16), 16)
    group.barrier()
    own = ctypes.string_at(memory.addresses[group.rank], nbytes)
    group.barrier()
    memory.close()
    return [own[16 * rank : 16 * (rank + 1)].strip() for rank in range(group.size)]


def refusing(monkeypatch: pytest.MonkeyPatch, refuses) -> None:
    """Let the system refuse segments where `refuses(named)` says so."""

    def create(nbytes: int, named: bool) -> _native.Segment:
        if refuses(named):
            raise RuntimeError("no such luck")
        return _native.Segment.create(nbytes, named)

    segment = SimpleNamespace(create=create, open=_native.Segment.open)
    monkeypatch.setattr(shared_memory, "_native", SimpleNamespace(Segment=segment))


def open_names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("edgedit-")}


NAMES = [[b"rank 0", b"rank 1", b"rank 2"]] * 3


def test_every_rank_writes_into_the_memory_of_all() -> None:
    files = len(os.listdir("/proc/self/fd"))
    assert ParallelContext.local(3, share_and_write) == NAMES
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="named segments live in /dev/shm")
def test_names_serve_where_unnamed_segments_are_refused_and_go_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusing(monkeypatch, lambda named: not named)
    before = open_names()
    assert shared_memory.probe() == "named"
    assert ParallelContext.local(3, share_and_write) == NAMES
    assert open_names() <= before


def test_all_ranks_are_told_when_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(100))
    refusing(monkeypatch, lambda named: next(turns) % 3 == 1)

    def attempt(context: ParallelContext) -> str:
        group = context.group("world")
        with pytest.raises(EdgeditError) as refused:
            shared_memory.share(64, group.rank, group.exchange)
        return str(refused.value)

    first, *others = ParallelContext.local(3, attempt)
    assert "no such luck" in first or "a peer has no segment" in first
    assert others == [first, first]


def test_a_path_that_leads_to_another_segment_is_noticed() -> None:
    meant, other = (_native.Segment.create(shared_memory._TOKEN_NBYTES, False) for _ in range(2))
    token = b"x" * shared_memory._TOKEN_NBYTES
    ctypes.memmove(meant.address, token, len(token))
    shared_memory._open({"path": meant.path, "nbytes": 0, "token": token.hex()})
    with pytest.raises(RuntimeError, match="another segment"):
        shared_memory._open({"path": other.path, "nbytes": 0, "token": token.hex()})
