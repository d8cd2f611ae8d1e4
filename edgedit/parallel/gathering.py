"""Timelines of all ranks on world rank 0, by one clock."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from edgedit.parallel.buffer import Buffer
from edgedit.parallel.context import ParallelContext
from edgedit.parallel.mesh import WORLD
from edgedit.parallel.timeline import Slice, Timeline, clock, packed, unpacked
from edgedit.parallel.wire import host_identity

_ROUNDS = 15


def gather(timeline: Timeline, context: ParallelContext) -> list[list[Slice]]:
    """The slices of every rank by the clock of rank 0, in the order of world ranks; empty on all others.

    A call that all ranks of the context make together.
    """
    offsets = clock_offsets(context)
    world = context.group(WORLD)
    data = zlib.compress(json.dumps(packed(timeline.slices)).encode(), 1)
    lengths = [struct.unpack("q", length)[0] for length in world.exchange(struct.pack("q", len(data)))]
    if context.rank != 0:
        world.send(Buffer.of(np.frombuffer(data, np.uint8)), 0, label="timeline")
        return []
    ranks = [shifted(timeline.slices, 0.0)]
    for rank in range(1, context.world_size):
        received = np.empty(lengths[rank], np.uint8)
        world.recv(Buffer.of(received), rank, label="timeline")
        theirs = unpacked(json.loads(zlib.decompress(received.tobytes())))
        ranks.append(shifted(list(theirs), offsets[rank]))
    return ranks


def clock_offsets(context: ParallelContext) -> list[float]:
    """Seconds by which the clock of each rank is ahead of that of rank 0, told from when barriers end."""
    world = context.group(WORLD)
    ends = []
    for _ in range(_ROUNDS):
        world.barrier(label="clocks")
        ends.append(clock())
    cards = world.exchange(json.dumps({"host": host_identity(), "ends": ends}).encode(), label="clocks")
    hosts, rounds = zip(*((card["host"], card["ends"]) for card in map(json.loads, cards)), strict=True)
    return offsets_of(hosts, rounds)


def offsets_of(hosts: Sequence[str], ends: Sequence[Sequence[float]]) -> list[float]:
    """Offsets from when each rank saw the same barriers end, `ends[rank][round]`.

    Ranks leave a barrier at slightly different times, now this one first and now that one: the median round counts.
    Ranks of one host read one clock, so what they measure against each other is noise and left out.
    """
    first_of_host = {host: hosts.index(host) for host in hosts}
    offsets = []
    for host in hosts:
        theirs = ends[first_of_host[host]]
        differences = [their_end - end for their_end, end in zip(theirs, ends[0], strict=True)]
        offsets.append(median(differences))
    return offsets


def shifted(slices: Sequence[Slice], offset_s: float) -> list[Slice]:
    """The slices by a clock that is `offset_s` behind."""
    return [
        replace(piece, begin_s=piece.begin_s - offset_s, end_s=piece.end_s - offset_s) for piece in slices
    ]
