"""From a planned collective to the call of a process group."""

from __future__ import annotations

import ctypes

from edgedit.graph.collective import Collective
from edgedit.parallel.buffer import Buffer
from edgedit.parallel.process_group import ProcessGroup
from edgedit.parallel.work import Work


def operand_counts(collective: Collective) -> tuple[int, int]:
    """Elements of the send tensor and of the receive tensor."""
    sent, received = sum(collective.send_counts), sum(collective.recv_counts)
    if collective.kind == "all_gather":
        return collective.send_counts[0], received
    if collective.kind == "broadcast":
        return collective.send_counts[0], collective.recv_counts[0]
    return sent, received


def start(collective: Collective, group: ProcessGroup, send: Buffer, receive: Buffer) -> Work:
    """Begin the collective. The ranks compared their schedules before, so no call is compared again."""
    label, counts = collective.name, (collective.send_counts, collective.recv_counts)
    if collective.kind in ("all_to_all", "ring_shift"):
        return group.all_to_all_async(send, receive, *counts, label=label, verified=True)
    if collective.kind == "all_gather":
        return group.all_gather_async(send, receive, collective.recv_counts, label=label, verified=True)
    if collective.kind == "all_reduce":
        return group.all_reduce_async(
            send, receive, collective.reduce_op or "sum", label=label, verified=True
        )
    assert collective.kind == "broadcast", f"unknown collective {collective.kind}"
    if collective.rank == 0:
        ctypes.memmove(receive.pointer, send.pointer, send.nbytes)
    return group.broadcast_async(receive, 0, label=label, verified=True)
