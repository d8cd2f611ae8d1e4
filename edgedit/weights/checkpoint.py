"""The tensors of one component directory: a safetensors file, or shards listed in an index.

Only safetensors is read. Pickle formats (.bin, .pt, .ckpt) can run code when opened and are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedit.errors import CheckpointError
from edgedit.weights.safetensors import MAX_HEADER_NBYTES, Entry, SafetensorsFile, unique_keys
from edgedit.weights.sources import TensorSource

if TYPE_CHECKING:
    import numpy as np

NAMES = ("diffusion_pytorch_model", "model")
VARIANTS = ("", ".fp32", ".bf16", ".fp16")
FLOAT_TYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


class Checkpoint(TensorSource):
    """Named tensors of one or more safetensors files, all validated, none read yet.

    `keys()`, `shape(key)` and `dtype(key)` come from the headers; `read(key)` is a view of the mapped file.
    """

    def __init__(self, path: Path, files: Sequence[SafetensorsFile]) -> None:
        self.path = path
        metadata: dict[str, str] = {}
        self._files: dict[str, SafetensorsFile] = {}
        for file in files:
            metadata |= file.metadata
            for key in file.entries:
                if key in self._files:
                    raise CheckpointError(
                        f"{path}: tensor {key!r} is in both {self._files[key].path.name} and {file.path.name}"
                    )
                self._files[key] = file
        self.metadata = metadata

    @classmethod
    def open(cls, path: str | Path, names: Sequence[str] = NAMES) -> Checkpoint:
        """Open a component.

        Args:
            path: a safetensors file, a `*.safetensors.index.json`, or a directory holding either.
            names: file stems to look for in a directory, best first.

        Raises:
            CheckpointError: if there is nothing to open, only pickle files, or anything malformed; names the file.
        """
        path = Path(path)
        file = _choose(path, names) if path.is_dir() else path
        if file.suffix in PICKLE_SUFFIXES:
            raise CheckpointError(
                f"{file}: pickle files can run code when opened and are never loaded; "
                "convert it to safetensors"
            )
        if not file.is_file():  # a pipe would be waited for
            raise CheckpointError(f"{file}: {'is no regular file' if file.exists() else 'no such file'}")
        if file.suffix == ".json":
            return cls(path, _open_shards(file))
        return cls(path, [SafetensorsFile(file)])

    def _named(self) -> Collection[str]:
        return self._files

    def entry(self, key: str) -> Entry:
        return self._files[key].entries[key]

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape in numpy order."""
        return self.entry(key).shape

    def dtype(self, key: str) -> str:
        """Stored type in the spelling of the format: F32, F16, BF16, I64, ..."""
        return self.entry(key).dtype

    def file(self, key: str) -> Path:
        """The file that holds the tensor."""
        return self._files[key].path

    @property
    def nbytes(self) -> int:
        return sum(self.entry(key).nbytes for key in self._files)

    def read(self, key: str) -> np.ndarray:
        """Read-only memory-mapped view in the stored type; bf16 and fp8 arrive as their bits."""
        return self._files[key].read(key)


def _choose(directory: Path, names: Iterable[str]) -> Path:
    """The file of `directory` to open."""
    for name in names:
        for variant in VARIANTS:
            for file in (f"{name}{variant}.safetensors", f"{name}.safetensors.index{variant}.json"):
                if (directory / file).is_file():
                    return directory / file
    found = sorted(directory.glob("*.safetensors.index*.json")) or sorted(directory.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        raise CheckpointError(
            f"{directory}: several checkpoints and no index: {listing(file.name for file in found)}"
        )
    pickles = sorted(file for file in directory.iterdir() if file.suffix in PICKLE_SUFFIXES)
    if pickles:
        return pickles[0]
    raise CheckpointError(f"{directory}: holds no safetensors file and no safetensors index")


def _open_shards(index: Path) -> list[SafetensorsFile]:
    """Open every shard that the index names and check that it holds the tensors that the index places there."""
    weight_map = _read_weight_map(index)
    shards: dict[str, list[str]] = {}
    for key, shard in weight_map.items():
        shards.setdefault(shard, []).append(key)
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: shard {shard!r} is not the name of a safetensors file beside the index"
            )
    absent_shards = [shard for shard in shards if not (index.parent / shard).is_file()]
    if absent_shards:
        raise CheckpointError(f"{index}: shards that it names are missing: {listing(absent_shards)}")
    files = []
    for shard, keys in shards.items():
        file = SafetensorsFile(index.parent / shard)
        absent = [key for key in keys if key not in file.entries]
        if absent:
            raise CheckpointError(f"{index}: places tensors in {shard} that are not there: {listing(absent)}")
        files.append(file)
    return files


def _read_weight_map(index: Path) -> dict[str, str]:
    if index.stat().st_size > MAX_HEADER_NBYTES:
        raise CheckpointError(
            f"{index}: {index.stat().st_size} bytes exceed the limit of {MAX_HEADER_NBYTES}"
        )
    try:
        content: Any = json.loads(index.read_bytes().decode("utf-8"), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{index}: malformed index: {error}") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: has no weight_map of tensor names to shard files")
    if not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{index}: weight_map must map tensor names to file names")
    return weight_map


def listing(names: Iterable[str], limit: int = 10) -> str:
    """The first `limit` names and how many more there are."""
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
