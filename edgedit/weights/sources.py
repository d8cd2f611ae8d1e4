"""What all files of weights have in common, whatever their format: named tensors that are mapped, not read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np

GGUF_SUFFIX = ".gguf"


class TensorSource(ABC):
    """Named tensors of one or more files, all validated, none read yet.

    path      what was opened, for messages
    metadata  what the files say besides tensors
    """

    path: Path
    metadata: Mapping[str, Any]

    @abstractmethod
    def _named(self) -> Collection[str]:
        """All tensor names, in the order of the files."""

    @abstractmethod
    def shape(self, key: str) -> tuple[int, ...]:
        """Shape in numpy order, in elements."""

    @abstractmethod
    def dtype(self, key: str) -> str:
        """Stored type: F32, F16, BF16, F64, F8_E4M3, I64, ... as safetensors spells it, or ggml's block type: Q4_K."""

    @abstractmethod
    def read(self, key: str) -> np.ndarray:
        """Read-only view of the mapped file.

        Plain types come in the tensor's shape, bf16 and fp8 as their bits in uint16 and uint8; block types as uint8
        [rows, bytes of a row], rows being the product of all axes but the last.
        """

    def file(self, key: str) -> Path:
        """The file that holds the tensor."""
        return self.path

    def scale(self, key: str) -> np.ndarray | None:
        """Factor of the stored values, f32: [1], or [rows, 1] with one for each index of the first axis. None for 1."""
        return None

    def natural_dtype(self, key: str) -> str:
        """The type that a weight has in memory where none is asked for, in ggml's spelling: f32, or as it is stored."""
        return "f32"

    def as_f32(self, key: str) -> np.ndarray:
        """The tensor as float32 in its shape: a view where it is stored so, a converted copy otherwise.

        Raises CheckpointError if the stored type is none that weights may have.
        """
        from edgedit.weights.convert import check_weight_type, scaled, to_f32

        stored = check_weight_type(self, key)
        return scaled(to_f32(self.read(key), stored), self.scale(key)).reshape(self.shape(key))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(self.read(key).nbytes for key in self)

    def keys(self) -> list[str]:
        """All tensor names, in the order of the files."""
        return list(self._named())

    def __iter__(self) -> Iterator[str]:
        return iter(self._named())

    def __contains__(self, key: object) -> bool:
        return key in self._named()

    def __len__(self) -> int:
        return len(self._named())


def open_source(path: str | Path) -> TensorSource:
    """Open weights by their path.

    Args:
        path: a GGUF file, a safetensors file, a `*.safetensors.index.json`, or a directory of safetensors or with
            one GGUF file.

    Raises:
        CheckpointError: if there is nothing to open, a pickle file, or anything malformed; names the file.
    """
    from edgedit.weights.checkpoint import Checkpoint, listing
    from edgedit.weights.gguf import GgufFile, is_gguf

    path = Path(path)
    if path.is_dir() and not any(path.glob("*.safetensors*")):
        files = sorted(path.glob(f"*{GGUF_SUFFIX}"))
        if len(files) > 1:
            raise CheckpointError(f"{path}: several GGUF files: {listing([file.name for file in files])}")
        path = files[0] if files else path
    if path.suffix == GGUF_SUFFIX or is_gguf(path):
        return GgufFile(path)
    return Checkpoint.open(path)


class Together(TensorSource):
    """Several sources as one. Raises CheckpointError where two hold a tensor of one name."""

    def __init__(self, sources: Sequence[TensorSource]) -> None:
        assert sources, "no sources"
        self.path = sources[0].path
        metadata: dict[str, Any] = {}
        self._sources: dict[str, TensorSource] = {}
        for source in sources:
            metadata |= source.metadata
            for key in source:
                if key in self._sources:
                    other = self._sources[key].file(key)
                    raise CheckpointError(f"tensor {key!r} is in both {other} and {source.file(key)}")
                self._sources[key] = source
        self.metadata = metadata

    def _named(self) -> Collection[str]:
        return self._sources

    def shape(self, key: str) -> tuple[int, ...]:
        return self._sources[key].shape(key)

    def dtype(self, key: str) -> str:
        return self._sources[key].dtype(key)

    def read(self, key: str) -> np.ndarray:
        return self._sources[key].read(key)

    def scale(self, key: str) -> np.ndarray | None:
        return self._sources[key].scale(key)

    def natural_dtype(self, key: str) -> str:
        return self._sources[key].natural_dtype(key)

    def as_f32(self, key: str) -> np.ndarray:
        return self._sources[key].as_f32(key)

    def file(self, key: str) -> Path:
        return self._sources[key].file(key)

    @property
    def nbytes(self) -> int:
        return sum(source.nbytes for source in {id(source): source for source in self._sources.values()}.values())
