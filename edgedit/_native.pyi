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

# Operators (csrc/ops)

class ops:
    """CPU operators: addresses of their callbacks, and their specs, which own their memory. Whoever adds a node
    keeps its spec for as long as the graph can run. ValueError for counts that cannot be."""

    pack: int
    receive: int
    rope_table: int
    modulate: int
    gated_residual: int
    max_streams: int
    max_planes: int
    max_head_dim: int

    @staticmethod
    def rows() -> str:
        """Which version of the row loops this processor runs: "portable" or "avx2"."""

    @staticmethod
    def tensor_offsets() -> dict[str, int]:
        """Byte offsets at which the operators look for the fields of a ggml tensor."""

    class ExchangeSpec:
        """Of `pack` and `receive`; `wire` has one dtype per plane, `tokens` the global count of each stream."""

        def __init__(
            self,
            to_heads: bool,
            ranks: int,
            rank: int,
            tokens: Sequence[int],
            heads: int,
            head_dim: int,
            batch: int,
            padded: bool,
            wire: Sequence[str],
        ) -> None: ...
        def limit(self, first_stream: int, num_streams: int, first_plane: int, num_planes: int) -> None:
            """Streams that a pack node reads, planes that a receive node makes; all of them at first."""

        def prepare(self, norms: Sequence[Sequence[int]], rotated: Sequence[bool], eps: float) -> None:
            """RMS norm weights as addresses of ggml tensors (0: none) per stream and plane, and the planes to rotate."""

        def pack_planes(self) -> None:
            """Pack for one rank: head-major planes instead of blocks."""

        def set_targets(self, addresses: Sequence[int]) -> None:
            """Where pack writes the block of each peer; none: into the node's own result."""

        @property
        def row_nbytes(self) -> int:
            """Bytes of one head of one token on the wire, all planes."""

        @property
        def address(self) -> int: ...

    class RopeTableSpec:
        def __init__(self, axes: int) -> None: ...
        @property
        def address(self) -> int: ...

    class PointwiseSpec:
        def __init__(self, eps: float = 0.0) -> None: ...
        @property
        def address(self) -> int: ...
