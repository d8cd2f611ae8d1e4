"""A group of one: every collective is a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgedit.parallel.buffer import Buffer, copy_elements
from edgedit.parallel.call import Call
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.work import Done, Work


class NoneGroup(ProcessGroup):
    """The group of a rank that is alone on its axis."""

    def native_transport(self) -> Any:
        from edgedit import _native

        return _native.copy_transport(self.ranks[0])

    def _gather_records(self, call: Call, record: bytes) -> list[bytes]:
        return [record]

    def _move(
        self, call: Call, send: Buffer, recv: Buffer, send_counts: Sequence[int], send_offsets: Sequence[int],
        recv_counts: Sequence[int],
    ) -> Work:  # fmt: skip
        copy_elements(send, send_offsets[0], recv, 0, recv_counts[0])
        return Done()

    def _broadcast(self, call: Call, buffer: Buffer, root: int) -> Work:
        return Done()

    def _send(self, call: Call, buffer: Buffer, dst: int, tag: int, record: bytes | None) -> Work:
        raise AssertionError("a group of one has no peers")

    def _recv(
        self, call: Call, buffer: Buffer, src: int, tag: int, check: Callable[[bytes], None] | None
    ) -> Work:
        raise AssertionError("a group of one has no peers")
