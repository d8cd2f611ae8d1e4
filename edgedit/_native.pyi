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
    linear: int
    attention: int
    attention_partial: int
    attention_merge: int
    conv2d: int
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
            """Norm weights per stream and plane as addresses of ggml tensors (0: none), and the planes to rotate."""

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

    class MergeSpec:
        def __init__(self) -> None: ...
        @property
        def address(self) -> int: ...

    # Of the nodes that kernels compute. Addresses are those of ggml tensors, 0 for none; types are ggml's numbers.

    class LinearSpec:
        def __init__(
            self,
            family: str,
            weight: int,
            type: int,
            columns: int,
            inner: int,
            to_float: int,
            bias: int,
            compute: str,
            activation: str | None,
            num_inputs: int,
            has_gate: bool,
            has_residual: bool,
        ) -> None: ...
        @property
        def address(self) -> int: ...

    class AttentionSpec:
        def __init__(self, family: str, compute: str, scale: float, has_mask: bool) -> None: ...
        @property
        def address(self) -> int: ...

    class Conv2dSpec:
        """`padding` is above, below, left, right."""

        def __init__(
            self,
            family: str,
            weight: int,
            bias: int,
            activation: str | None,
            stride: int,
            padding: tuple[int, int, int, int],
            has_residual: bool,
        ) -> None: ...
        @property
        def address(self) -> int: ...

# Kernel families (csrc/kernels)

class kernels:
    """The families of this processor and the packed form of their weights. ValueError for one that it cannot run."""

    @staticmethod
    def families() -> list[str]:
        """Those of our own that this processor can run, best first."""

    @staticmethod
    def onednn() -> tuple[bool, str]:
        """Whether there is a oneDNN that can be used, and its version and instructions, or why there is none."""

    @staticmethod
    def best() -> str:
        """The fastest here, or "ggml"."""

    @staticmethod
    def panel(family: str) -> int:
        """Columns of a panel of a packed weight."""

    @staticmethod
    def has_bf16(family: str) -> bool:
        """Whether it multiplies bf16, where weights are no f32."""

    @staticmethod
    def has_int8(family: str, type: int) -> bool:
        """Whether weights of ggml's type of that number are multiplied as integers where asked for."""

    @staticmethod
    def packed_nbytes(family: str, type: int, columns: int, inner: int) -> int:
        """Size of a packed weight; 0 for types that are not packed."""

    @staticmethod
    def pack(
        family: str, type: int, columns: int, inner: int, first: int, count: int, rows: int, packed: int
    ) -> None:
        """Put rows [first, first + count) of a weight [columns, inner], which stand dense at the address `rows`, into
        their place at `packed`. Whole panels only, but for the last one."""

# Transports: what carries planned collectives. Addresses are integers; blocks are (send offset, send bytes, receive
# offset, receive bytes, offset in the peer's segment), one per rank of the group.

Block = tuple[int, int, int, int, int]

class Transport:
    """Carries exchanges between the ranks of one group."""

def copy_transport(world_rank: int) -> Transport:
    """Of a group of one."""

def mpi_transport(
    rank: int, world_ranks: Sequence[int], functions: Sequence[int], byte_type: int, comm: int, tag: int
) -> Transport:
    """Over MPI; functions are the addresses of MPI_Isend, MPI_Irecv, MPI_Test and MPI_Error_string."""

def shm_transport(rank: int, world_ranks: Sequence[int], slots: int, segments: Sequence[int]) -> Transport:
    """Over shared memory; segments[p] is where that of rank p begins here."""

def shm_slots_offset(ranks: int, slots: int) -> int:
    """Bytes of a segment before its slots."""

class Program:
    """The collectives of one planned graph, numbered as they are added; see csrc/transport/program.hpp.

    signs is the address of int32 [world_size + 1]: not 0 where that rank has left; last, where one is in trouble.
    """

    def __init__(self, signs: int, world_size: int, with_signals: bool = True) -> None: ...
    def add_exchange(
        self, transport: Transport, send: int, recv: int, blocks: Sequence[Block], slot: int = 0
    ) -> int: ...
    def add_collective(self, exchange: int, /) -> int: ...
    def add_all_reduce(
        self, parts: int, whole: int, element: int, reduce: int, ranks: int, count: int
    ) -> int: ...
    def release_at_start(self, collective: int, exchange: int, /) -> None: ...
    def release_at_wait(self, collective: int, exchange: int, /) -> None: ...
    def node(self, collective: int, /) -> int:
        """User data of the start and wait nodes of a collective."""
    def producer(self, collective: int, run: int, userdata: int) -> int:
        """User data of an operator that writes into the peers' slots."""
    def target(self, collective: int, peer: int, /) -> int:
        """Where the block for a peer may be written; 0 where it has to be sent."""
    def begin(self) -> None: ...
    def end(self) -> None: ...
    def failure(self) -> tuple[int, int, list[int], str]:
        """Code, collective (or -1), world ranks waited for, words of the transport."""
    @property
    def address(self) -> int: ...
    def times(self) -> tuple[float, float]:
        """Seconds of the last run that went into exchanges: waiting for peers, and everything else."""
    def times_of(self, collective: int, /) -> tuple[float, float]:
        """The same for one collective."""
    @property
    def started(self) -> int: ...
    @property
    def waiting_in(self) -> int: ...

collective_start: int
collective_wait: int
collective_producer: int
collective_abort: int

def raise_interrupt() -> None:
    """Raise what a signal handler raised while native code waited."""

class Segment:
    """Memory that several processes of one host map. RuntimeError where the system refuses."""

    @staticmethod
    def create(nbytes: int, named: bool) -> Segment: ...
    @staticmethod
    def open(path: str, nbytes: int) -> Segment: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def path(self) -> str: ...
    def forget_path(self) -> None: ...

class Channels:
    """Byte rings between the ranks of one host."""

    def __init__(self, rank: int, inboxes: Sequence[int], ring_nbytes: int) -> None: ...
    @staticmethod
    def inbox_nbytes(ranks: int, ring_nbytes: int) -> int: ...
    def post(self, send: int, recv: int, blocks: Sequence[Block], /) -> int: ...
    def test(self, number: int, /) -> bool: ...
    def missing(self, number: int, /) -> list[int]: ...
    @property
    def moved_s(self) -> float:
        """Seconds spent copying so far."""
