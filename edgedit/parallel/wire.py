"""The control channel between two ranks: short JSON lines over TCP, which never block."""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from edgedit.errors import EdgeditError

_MAX_LINE_NBYTES = 1 << 20
# netdevice(7): the request for an interface's address, and where in the answer it stands
_SIOCGIFADDR = 0x8915
_IFREQ_ADDRESS = slice(20, 24)


class Connection:
    """One peer. Not thread-safe; the owner serialises calls."""

    def __init__(self, rank: int, sock: socket.socket) -> None:
        self.rank = rank
        self.sock = sock
        self.is_open = True
        self._inbox = bytearray()
        self._outbox = bytearray()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def has_backlog(self) -> bool:
        return bool(self._outbox)

    def post(self, message: Mapping[str, Any]) -> None:
        """Queue a message and send what the socket takes now."""
        self._outbox += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        while self._outbox and self.is_open:
            try:
                del self._outbox[: self.sock.send(self._outbox)]
            except BlockingIOError:
                return
            except OSError:
                # Whether the peer is gone is for `read` to say: what it sent before it went is still to be read.
                self._outbox.clear()

    def read(self) -> list[dict[str, Any]]:
        """The messages that have arrived; after the peer's end of the connection is gone, `is_open` is False."""
        while self.is_open:
            try:
                data = self.sock.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.is_open = False
            self._inbox += data
        *lines, rest = self._inbox.split(b"\n")
        self._inbox = bytearray(rest)
        if len(self._inbox) > _MAX_LINE_NBYTES:
            self.is_open = False
        return [message for message in map(_parse, lines) if message is not None]

    def close(self) -> None:
        self.is_open = False
        self.sock.close()


def _parse(line: bytes | bytearray) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def host_identity() -> str:
    """A word that two processes share exactly when the loopback interface joins them (a container is its own host)."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def host_addresses() -> list[str]:
    """Addresses under which other hosts may reach this one, likeliest first."""
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; picks the interface of the default route
            found.append(probe.getsockname()[0])
        except OSError:
            pass
    with contextlib.suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    # a network of nodes alone may have neither a default route nor names
    found += interface_addresses()
    return [address for address in dict.fromkeys(found) if not address.startswith("127.")]


def interface_addresses() -> list[str]:
    """The first IPv4 address of each network interface that has one; none where the system is no Linux."""
    found: list[str] = []
    if sys.platform != "linux":
        return found
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[_IFREQ_ADDRESS]))
    return found


class Meeting:
    """Connects every pair of ranks once they know each other's addresses.

    `card()` is what a rank gives to all others over MPI; `join` makes the connections: each rank calls the lower ones.
    """

    def __init__(self, rank: int, one_host: bool) -> None:
        self.rank = rank
        self._secret = secrets.token_hex(16)
        self._listener = socket.create_server(("127.0.0.1" if one_host else "", 0), backlog=128)
        self._one_host = one_host

    def card(self) -> dict[str, Any]:
        return {
            "host": host_identity(),
            "addresses": [] if self._one_host else host_addresses(),
            "port": self._listener.getsockname()[1],
            "secret": self._secret,
        }

    def join(self, cards: Sequence[Mapping[str, Any]], timeout_s: float) -> list[Connection]:
        """A connection to every other rank. Raises `EdgeditError` naming the rank that cannot be reached."""
        deadline = time.monotonic() + timeout_s
        # Any process could connect to the port; only a rank knows what rank 0 gave out over MPI.
        secret = cards[0]["secret"]
        connections = {}
        try:
            for peer in range(self.rank):
                sock = self._call(peer, cards[peer], cards[self.rank]["host"], deadline)
                sock.sendall(json.dumps({"rank": self.rank, "secret": secret}).encode() + b"\n")
                connections[peer] = Connection(peer, sock)
            while len(connections) < len(cards) - 1:
                self._listener.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    sock, _ = self._listener.accept()
                    caller = _greeting(sock, secret, deadline)
                except OSError:
                    if time.monotonic() < deadline:
                        continue
                    absent = sorted(set(range(len(cards))) - {self.rank, *connections})
                    raise EdgeditError(
                        f"[rank {self.rank}/{len(cards)}] no control connection from ranks {absent} in {timeout_s} s"
                    ) from None
                if caller is not None and self.rank < caller < len(cards) and caller not in connections:
                    connections[caller] = Connection(caller, sock)
                else:
                    sock.close()
        finally:
            self._listener.close()
        return [connections[peer] for peer in sorted(connections)]

    def _call(self, peer: int, card: Mapping[str, Any], own_host: str, deadline: float) -> socket.socket:
        addresses = ["127.0.0.1"] if card["host"] == own_host else card["addresses"]
        reasons = []
        for address in addresses:
            try:
                left_s = max(0.1, deadline - time.monotonic())
                return socket.create_connection((address, card["port"]), timeout=left_s)
            except OSError as error:
                reasons.append(f"{address}: {error}")
        raise EdgeditError(
            f"[rank {self.rank}] no control connection to rank {peer} at port {card['port']} ({'; '.join(reasons)})"
        )


def _greeting(sock: socket.socket, secret: str, deadline: float) -> int | None:
    """The rank that a caller says it is, or None for a stranger."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 256:
        sock.settimeout(max(0.01, min(5.0, deadline - time.monotonic())))
        data = sock.recv(1)  # byte by byte: what follows the greeting is not ours to read
        if not data:
            return None
        line += data
    message = _parse(line) or {}
    rank = message.get("rank")
    trusted = secrets.compare_digest(str(message.get("secret")), secret)
    return rank if trusted and isinstance(rank, int) else None
