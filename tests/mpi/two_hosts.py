"""Two hosts on one machine: network namespaces that a virtual cable joins, each with names, processes and shared memory
of its own, so that ranks in one cannot reach those in the other but over the network.

    sudo two_hosts.py [--delay-ms MS] RANKS PROGRAM [ARGUMENT ...]

runs a Python file or module over both, half of the ranks on each, the first half on the first. The delay is one way.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from launch import environment, mpiexec_path
from slow_cable import SlowCable

_NAMES = ("edgedit-a", "edgedit-b")
_CABLE = ("edgedit-va", "edgedit-vb")
_ADDRESSES = ("10.77.0.1", "10.77.0.2")

_ISOLATED = ("unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc")
_OWN = "hostname {host}; mount -t tmpfs tmpfs /dev/shm"

# Stands in for ssh to the second host: ADDRESS COMMAND ..., which a shell reads once more.
_REMOTE_SHELL = f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
[ "$1" = {_ADDRESSES[1]} ] || {{ echo "no host $1" >&2; exit 1; }}
shift
exec ip netns exec {_NAMES[1]} {" ".join(_ISOLATED)} sh -c "{_OWN.format(host=_NAMES[1])}; $*"
"""


class NotPermitted(Exception):
    """Why this system makes no such hosts."""


class NoDelay(NotPermitted):
    """Why its own cables have no delay."""


@contextlib.contextmanager
def two_hosts(delay_ms: float = 0.0) -> Iterator[TwoHosts]:
    """Raises NotPermitted with the system's own words where namespaces, cables or delays cannot be had."""
    with contextlib.ExitStack() as cleanup:
        for name in _NAMES:
            _system("ip", "netns", "add", name)
            cleanup.callback(_system, "ip", "netns", "del", name)
        try:
            _lay_cable(delay_ms)
        except NoDelay as reason:
            cleanup.callback(_lay_slow_cable(delay_ms, reason).close)
        _system("ip", "netns", "exec", _NAMES[0], *_ISOLATED, "true")
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        shell = directory / "remote_shell"
        shell.write_text(_REMOTE_SHELL)
        shell.chmod(0o755)
        yield TwoHosts(shell)


def _lay_cable(delay_ms: float) -> None:
    """Virtual Ethernet, with the kernel's own delay."""
    _system("ip", "link", "add", _CABLE[0], "type", "veth", "peer", "name", _CABLE[1])
    _connect()
    for name, end in zip(_NAMES, _CABLE, strict=True):
        if delay_ms:
            delay = ("root", "netem", "delay", f"{delay_ms}ms")
            try:
                _system("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", end, *delay)
            except NotPermitted as reason:
                _system("ip", "-n", name, "link", "del", end)  # both ends
                raise NoDelay(str(reason)) from None


def _lay_slow_cable(delay_ms: float, reason: NotPermitted) -> SlowCable:
    try:
        cable = SlowCable(_CABLE, delay_ms / 1000)
    except OSError as error:
        raise NotPermitted(f"{reason}; and no tun devices: {error}") from None
    try:
        _connect()
    except NotPermitted:
        cable.close()
        raise
    return cable


def _connect() -> None:
    """Put an end of the cable into each namespace."""
    for name, end, address in zip(_NAMES, _CABLE, _ADDRESSES, strict=True):
        _system("ip", "link", "set", end, "netns", name)
        _system("ip", "-n", name, "addr", "add", f"{address}/24", "dev", end)
        for device in ("lo", end):
            _system("ip", "-n", name, "link", "set", device, "up")


class TwoHosts:
    def __init__(self, remote_shell: Path) -> None:
        self._remote_shell = remote_shell

    def command(self, num_ranks: int, program: str | Path, *args: object) -> list[str]:
        """Run a Python file or module with half of the ranks on each host; Hydra's options."""
        each = num_ranks // 2
        hosts = ",".join(f"{address}:{each}" for address in _ADDRESSES)
        how = [str(program)] if str(program).endswith(".py") else ["-m", str(program)]
        # the launcher, and with it the ranks beside it, are processes of the first host
        within = (*_ISOLATED, "sh", "-c", f'{_OWN.format(host=_NAMES[0])}; exec "$@"', "sh")
        return [
            *("ip", "netns", "exec", _NAMES[0], *within, str(mpiexec_path()), "-hosts", hosts),
            *("-iface", _CABLE[0], "-launcher", "ssh", "-launcher-exec", str(self._remote_shell)),
            *("-n", str(num_ranks), sys.executable, *how, *map(str, args)),
        ]

    def run(
        self, num_ranks: int, program: str | Path, *args: object, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        # hosts that share a kernel look like one to UCX, which would take memory that they do not share
        env = {**environment(), "UCX_TLS": "tcp,self"}
        return subprocess.run(
            self.command(num_ranks, program, *args),
            env=env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
        )  # fmt: skip


def _system(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        raise NotPermitted(f"there is no {words[0]} here") from None
    if done.returncode:
        raise NotPermitted(f"{' '.join(words)}: {done.stderr.strip()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delay-ms", type=float, default=0.0, metavar="MS")
    parser.add_argument("ranks", type=int)
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    with two_hosts(given.delay_ms) as hosts:
        command = hosts.command(given.ranks, given.program, *given.arguments)
        return subprocess.run(command, env={**environment(os.environ), "UCX_TLS": "tcp,self"}).returncode


if __name__ == "__main__":
    sys.exit(main())
