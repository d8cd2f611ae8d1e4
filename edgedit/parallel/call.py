"""The description of one collective call: what ranks compare before data moves, and how messages name it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgedit import dtypes

KINDS = (
    "barrier", "all_reduce", "all_gather", "all_to_all", "broadcast", "send", "recv", "exchange"
)  # fmt: skip
REDUCE_OPS = ("sum", "max", "min")
_LABEL_NBYTES = 64
_FIXED = struct.Struct(f"<6q{_LABEL_NBYTES}s")


@dataclass(frozen=True)
class Call:
    """One call of one rank. `detail` is the root of a broadcast, the index of a reduce operation, or a peer."""

    kind: str
    sequence: int
    dtype: str
    count: int
    detail: int = 0
    send_counts: tuple[int, ...] = ()
    recv_counts: tuple[int, ...] = ()
    label: str = ""
    group: str = field(default="", compare=False)

    def __str__(self) -> str:
        label = f" '{self.label}'" if self.label else ""
        return f"{self.kind} #{self.sequence}{label} on {self.group}"

    @staticmethod
    def record_nbytes(size: int) -> int:
        """Bytes of the record of a call in a group of `size` ranks; the same for every call."""
        return _FIXED.size + 16 * size

    def pack(self, size: int) -> bytes:
        """The record that peers compare."""
        label = self.label.encode()[:_LABEL_NBYTES]
        head = _FIXED.pack(
            self.sequence, KINDS.index(self.kind), dtypes.CODES.index(self.dtype),
            self.count, self.detail, len(self.send_counts), label,
        )  # fmt: skip
        counts = [*self.send_counts, *self.recv_counts] or [0] * (2 * size)
        return head + struct.pack(f"<{2 * size}q", *counts)

    @staticmethod
    def unpack(record: bytes, group: str) -> Call:
        sequence, kind, dtype, count, detail, num_counts, label = _FIXED.unpack_from(record)
        counts = struct.unpack_from(f"<{(len(record) - _FIXED.size) // 8}q", record, _FIXED.size)
        size = len(counts) // 2
        return Call(
            KINDS[kind], sequence, dtypes.CODES[dtype], count, detail,
            counts[:size] if num_counts else (), counts[size:] if num_counts else (),
            label.rstrip(b"\0").decode(errors="replace"), group,
        )  # fmt: skip

    def detail_name(self) -> str:
        if self.kind == "all_reduce":
            return f"operation {REDUCE_OPS[self.detail]}"
        return f"root {self.detail}"


def disagreement(calls: Sequence[Call], ranks: Sequence[int]) -> str | None:
    """The first way in which the calls of a group differ, naming two world ranks and both values; None if they agree.

    `calls[i]` is the call of the rank `ranks[i]`. Every rank that sees the same calls says the same.
    """
    first = calls[0]
    for call, rank in zip(calls[1:], ranks[1:], strict=True):
        for ours, theirs in (
            (first.kind, call.kind),
            (f"call #{first.sequence}", f"call #{call.sequence}"),
            (first.label, call.label),
            (first.dtype, call.dtype),
            (first.detail_name(), call.detail_name()),
        ):
            if ours != theirs:
                return f"rank {ranks[0]} calls {_summary(first, ours)}, rank {rank} calls {_summary(call, theirs)}"
        if first.kind in ("broadcast", "all_reduce") and first.count != call.count:
            return f"rank {ranks[0]} passes {first.count} elements, rank {rank} passes {call.count}"
    for i, sender in enumerate(calls):
        for j, receiver in enumerate(calls):
            if sender.send_counts and sender.send_counts[j] != receiver.recv_counts[i]:
                return (
                    f"rank {ranks[i]} sends {sender.send_counts[j]} elements to rank {ranks[j]}, "
                    f"which expects {receiver.recv_counts[i]}"
                )
    return None


def _summary(call: Call, value: str) -> str:
    shown = f"{call.kind} #{call.sequence} '{call.label}' of {call.dtype}"
    return shown if value in shown else f"{shown} ({value})"
