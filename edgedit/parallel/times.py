"""Where the time of compiled graphs goes on one rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RunTimes:
    """Seconds of one or more runs; no second is counted twice.

    compute_s   inside ggml
    exchange_s  moving bytes between ranks: copies, operators that write their result to the peers, sums of reductions
    wait_s      waiting until a peer had sent something, or had taken it
    """

    compute_s: float = 0.0
    exchange_s: float = 0.0
    wait_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.compute_s + self.exchange_s + self.wait_s

    def add(self, other: RunTimes) -> None:
        self.compute_s += other.compute_s
        self.exchange_s += other.exchange_s
        self.wait_s += other.wait_s

    def since(self, earlier: RunTimes) -> RunTimes:
        """What has been added after `earlier`, a copy of these sums."""
        return RunTimes(
            self.compute_s - earlier.compute_s,
            self.exchange_s - earlier.exchange_s,
            self.wait_s - earlier.wait_s,
        )
