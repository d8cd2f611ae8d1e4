"""Memory that all ranks of a group on one host map: each has a segment of its own and sees those of the others."""

from __future__ import annotations

import ctypes
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from edgedit import _native
from edgedit.errors import EdgeditError

_TOKEN_NBYTES = 64

# `exchange(data)` gives the data of every rank of the group, in its order.
Exchange = Callable[[bytes], list[bytes]]


class SharedMemory:
    """The segments of a group, fresh ones zeroed; `addresses[p]` is where that of rank p begins here."""

    def __init__(self, segments: Sequence[Any]) -> None:
        self._segments = list(segments)
        self.addresses = [segment.address for segment in segments]

    def close(self) -> None:
        """Unmap all; what the peers have mapped stays valid for them."""
        self._segments.clear()
        self.addresses.clear()


def share(nbytes: int, rank: int, exchange: Exchange) -> SharedMemory:
    """Make a segment of `nbytes` and map those of the others, which may be of other sizes.

    A call that all ranks of the group make together. Raises EdgeditError on every rank, naming the first reason, where
    one of them cannot: the ranks are on different hosts, or the system refuses.
    """
    reasons: list[str] = []
    for named in (False, True):
        memory, reasons = _attempt(nbytes, rank, exchange, named)
        if memory is not None:
            return memory
    raise EdgeditError(f"the ranks cannot share memory: {reasons[0]}")


def probe() -> str:
    """How processes of this host can share memory: "unnamed", "named", or "no" with the system's reason."""
    reason = ""
    for named in (False, True):
        try:
            segment = _native.Segment.create(_TOKEN_NBYTES, named)
            _native.Segment.open(segment.path, _TOKEN_NBYTES)
            return "named" if named else "unnamed"
        except RuntimeError as error:
            reason = reason or str(error)
    return f"no: {reason}"


def _attempt(
    nbytes: int, rank: int, exchange: Exchange, named: bool
) -> tuple[SharedMemory | None, list[str]]:
    reason, own = "", None
    token = secrets.token_bytes(_TOKEN_NBYTES)
    try:
        own = _native.Segment.create(nbytes + _TOKEN_NBYTES, named)
        ctypes.memmove(own.address + nbytes, token, _TOKEN_NBYTES)
    except RuntimeError as error:
        reason = str(error)
    card = {"path": own.path if own else "", "nbytes": nbytes, "token": token.hex()}
    cards = [json.loads(data) for data in exchange(json.dumps(card).encode())]
    segments = []
    try:
        for peer, theirs in enumerate(cards):
            segments.append(own if peer == rank else _open(theirs))
    except RuntimeError as error:
        reason = reason or str(error)
    answers = [data.decode() for data in exchange(reason.encode())]
    if own is not None:
        own.forget_path()  # all have mapped it, or it is of no use
    reasons = [f"rank {peer} of the group: {answer}" for peer, answer in enumerate(answers) if answer]
    return (None, reasons) if reasons else (SharedMemory(segments), reasons)


def _open(card: dict[str, Any]) -> Any:
    """The segment behind a card. The same path may lead elsewhere where processes are numbered otherwise."""
    if not card["path"]:
        raise RuntimeError("a peer has no segment")
    segment = _native.Segment.open(card["path"], card["nbytes"] + _TOKEN_NBYTES)
    token = ctypes.string_at(segment.address + card["nbytes"], _TOKEN_NBYTES)
    if token.hex() != card["token"]:
        raise RuntimeError(f"{card['path']} is another segment than the one meant")
    return segment
