"""Everything edgedit raises that is not the caller's input (that is `ValueError`) and not a bug of ours (`assert`)."""

from __future__ import annotations


def in_words(error: BaseException) -> str:
    """Type and message, or the type alone where there is no message."""
    name = type(error).__name__
    return f"{name}: {error}" if str(error) else name


class EdgeditError(RuntimeError):
    """A backend, a collective or a file let a run down."""


class CollectiveError(EdgeditError):
    """A collective could not finish, or the ranks disagree about it. Closes the context."""


class PeerLostError(CollectiveError):
    """Another rank died, or failed and said so."""


class CollectiveTimeout(CollectiveError):
    """Another rank showed no sign of life for `timeout_s` seconds."""


class CheckpointError(EdgeditError, ValueError):
    """A checkpoint file is damaged, or does not hold what the model needs.

    Its message quotes names from files: what a terminal would not show, or would obey, is escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in message))


class GgmlError(EdgeditError):
    """ggml reported a failure, or is not the build that edgedit relies on."""
