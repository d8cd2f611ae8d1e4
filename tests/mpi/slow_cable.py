"""A cable with a delay, for kernels without netem: two tun devices between which packets are carried by hand."""

from __future__ import annotations

import collections
import fcntl
import os
import select
import struct
import threading
import time

# tun(4) of Linux: name a device, of bare IP packets
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_MAX_PACKET = 1 << 16


class SlowCable:
    """Joins two tun devices of these names, which may then move to namespaces; packets take `delay_s` either way.

    Raises OSError where the system gives no such devices.
    """

    def __init__(self, names: tuple[str, str], delay_s: float) -> None:
        self._delay_s = delay_s
        self._ends = []
        try:
            for name in names:
                self._ends.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
                request = struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI)
                fcntl.ioctl(self._ends[-1], _TUNSETIFF, request)
        except OSError:
            self._close_ends()
            raise
        self._stops = threading.Event()
        self._carrier = threading.Thread(target=self._carry, name="slow cable", daemon=True)
        self._carrier.start()

    def close(self) -> None:
        self._stops.set()
        self._carrier.join()
        self._close_ends()

    def _close_ends(self) -> None:
        while self._ends:
            os.close(self._ends.pop())

    def _carry(self) -> None:
        first, second = self._ends
        other = {first: second, second: first}
        under_way: collections.deque[tuple[float, int, bytes]] = collections.deque()
        while not self._stops.is_set():
            left_s = under_way[0][0] - time.monotonic() if under_way else 0.1
            ready, _, _ = select.select(self._ends, [], [], min(max(left_s, 0.0), 0.1))
            for end in ready:
                try:
                    packet = os.read(end, _MAX_PACKET)
                except OSError:
                    continue
                under_way.append((time.monotonic() + self._delay_s, other[end], packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, end, packet = under_way.popleft()
                try:
                    os.write(end, packet)
                except OSError:
                    continue  # as cables do: what cannot be delivered is lost, and sent again
