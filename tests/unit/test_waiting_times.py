"""Waiting for peers, told apart from moving bytes, in calls that Python makes."""

from __future__ import annotations

import time

import pytest

from edgedit.parallel.call import Call
from edgedit.parallel.monitor import Monitor
from edgedit.parallel.waiting import Polled


def polled(monitor, ready, **options):
    return Polled(Call("all_gather", 1, "f32", 4), monitor, [], ready, list, **options)


def test_time_until_something_is_there_is_waiting():
    monitor = Monitor(0, 1)
    end = time.monotonic() + 0.05
    polled(monitor, lambda: time.monotonic() >= end).wait()
    assert 0.04 < monitor.waited_s < 0.5


def test_looks_that_take_long_move_bytes():
    monitor = Monitor(0, 1)
    looks = iter([False, False, True])

    def ready():
        time.sleep(0.02)
        return next(looks)

    polled(monitor, ready).wait()
    assert monitor.waited_s < 0.03


def test_a_backend_that_knows_what_it_moved_is_believed():
    monitor = Monitor(0, 1)
    moved = [0.0]

    def ready():
        time.sleep(0.02)
        moved[0] += 0.005
        return moved[0] > 0.012

    polled(monitor, ready, moved_s=lambda: moved[0]).wait()
    assert monitor.waited_s >= 0.06 - 0.015 - 1e-3


def test_what_was_moved_before_the_wait_does_not_count_in_it():
    monitor = Monitor(0, 1)
    end = time.monotonic() + 0.05
    work = polled(monitor, lambda: time.monotonic() >= end, moved_s=lambda: 100.0)
    assert not work.is_done()
    work.wait()
    assert monitor.waited_s == pytest.approx(0.05, abs=0.2)
    assert monitor.waited_s > 0.03
