"""Native core: index maps of sequence parallelism, the guard of collective nodes, facts about the build.

The layout functions are plain loops over every element, meant as oracles. Shapes: a stream is
[planes, batch, local tokens, heads, head_dim], a joint tensor [planes, batch, all tokens, local heads,
head_dim]; `tokens` holds the global token count of each stream. Elements of any dtype are moved, never
converted. ValueError is raised for shapes and counts that do not fit each other.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

version: str
collective_placeholder: int
"""Address of the custom-operator callback of collective nodes: ends the process when ggml itself reaches one.
Its user data is null or the address of the collective's NUL-terminated name."""

no_operation: int
"""Address of the callback of nodes that only own memory, which later nodes fill."""

def cpu_features() -> dict[str, bool]:
    """Vector and matrix extensions that processor and operating system offer; empty when not x86-64."""

def build_info() -> dict[str, str | bool]:
    """How the extension was built: version, build_type, compiler, compiler_family, pybind11, cuda."""

def share(total: int, ranks: int, rank: int, padded: bool = False) -> tuple[int, int]:
    """(begin, count) of the rank's share. Padded: equal counts, which may reach beyond total."""

def side_counts(
    ranks: int,
    rank: int,
    tokens: Sequence[int],
    heads: int,
    head_dim: int,
    planes: int = 1,
    batch: int = 1,
    padded: bool = False,
) -> tuple[list[int], list[int]]:
    """Elements exchanged with each peer: (own tokens and its heads, own heads and its tokens)."""

def pack_seq_to_head(
    streams: list[NDArray[Any]],
    ranks: int,
    rank: int,
    tokens: Sequence[int],
    heads: int,
    padded: bool = False,
) -> NDArray[Any]:
    """Send buffer of sequence -> head from this rank's streams."""

def unpack_seq_to_head(
    received: NDArray[Any],
    ranks: int,
    rank: int,
    tokens: Sequence[int],
    heads: int,
    head_dim: int,
    planes: int = 1,
    batch: int = 1,
    padded: bool = False,
) -> NDArray[Any]:
    """Joint tensor of this rank's heads from the receive buffer of sequence -> head; pads are dropped."""

def pack_head_to_seq(
    joint: NDArray[Any], ranks: int, rank: int, tokens: Sequence[int], heads: int, padded: bool = False
) -> NDArray[Any]:
    """Send buffer of head -> sequence from this rank's joint tensor; pads are sent as zeros."""

def unpack_head_to_seq(
    received: NDArray[Any],
    ranks: int,
    rank: int,
    tokens: Sequence[int],
    heads: int,
    head_dim: int,
    planes: int = 1,
    batch: int = 1,
    padded: bool = False,
) -> list[NDArray[Any]]:
    """This rank's streams from the receive buffer of head -> sequence."""
