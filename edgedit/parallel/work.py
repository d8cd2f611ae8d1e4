"""What an asynchronous call returns."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Work(ABC):
    """A communication under way. Its buffers belong to it until `wait` returns."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether `wait` would return at once; also moves the communication along."""

    @abstractmethod
    def wait(self) -> None:
        """Return when the receive buffers are filled and the send buffers free again.

        Raises `CollectiveError` (or its `PeerLostError`, `CollectiveTimeout`) when that can no longer happen.
        """


class Done(Work):
    """Work that was over when it was handed out."""

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        return
