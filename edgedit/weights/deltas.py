"""What LoRA files add to the parameters of one component, and a source of weights to which that is added.

    W' = W + sum of scale_i * up_i @ down_i        summed in f32, rounded once, to the type of the weights in memory
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgedit.errors import CheckpointError
from edgedit.weights.convert import part_of, scaled, to_f32
from edgedit.weights.lora_file import Factors
from edgedit.weights.pieces import Piece
from edgedit.weights.quantisation import needs_statistics
from edgedit.weights.sources import TensorSource


@dataclass(frozen=True, slots=True)
class Term:
    """What a pair of factors adds to one parameter: `pieces` of what it adds in all, times `weight`."""

    factors: Factors
    pieces: tuple[Piece, ...]
    weight: float


class Deltas:
    """The terms of every parameter that changes. Factors are read when they are asked for."""

    def __init__(self, terms: Mapping[str, Sequence[Term]], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._terms = terms
        self._shapes = shapes

    def __contains__(self, name: str) -> bool:
        return name in self._terms

    def __iter__(self) -> Iterator[str]:
        return iter(self._terms)

    def __len__(self) -> int:
        return len(self._terms)

    def without(self, names: Iterable[str]) -> Deltas:
        """Those of other parameters."""
        left = {name: terms for name, terms in self._terms.items() if name not in set(names)}
        return Deltas(left, self._shapes)

    def shape(self, name: str) -> tuple[int, int]:
        """[N, K] of a parameter, the kernel of a convolution flattened."""
        shape = self._shapes[name]
        return shape[0], math.prod(shape[1:])

    def rank(self, name: str) -> int:
        """Of the sum of all terms."""
        return sum(term.factors.rank for term in self._terms[name])

    def down(self, name: str) -> np.ndarray:
        """f32 [R, K], one term below the other."""
        return np.concatenate([term.factors.down() for term in self._terms[name]])

    def up(self, name: str) -> np.ndarray:
        """f32 [N, R], one term beside the other, scales and weights included."""
        up = np.zeros((self._shapes[name][0], self.rank(name)), np.float32)
        end = 0
        for term in self._terms[name]:
            begin, end = end, end + term.factors.rank
            values = term.factors.up() * np.float32(term.factors.scale * term.weight)
            for piece in term.pieces:
                up[piece.first : piece.first + piece.length, begin:end] = values[piece.begin : piece.end]
        return up


class MergedRows:
    """Rows of a weight [N, K] with what is added to them, computed as they are taken out.

    A slice gives f32 rows; a tuple of slices another of these, of which nothing is computed yet.
    """

    ndim = 2

    def __init__(
        self,
        values: np.ndarray,
        stored: str,
        scale: np.ndarray | None,
        up: np.ndarray,
        down: np.ndarray,
        columns: slice = slice(None),
    ) -> None:
        self._values, self._stored, self._scale = values, stored, scale
        self._up, self._down, self._columns = up, down, columns
        self.shape = (len(up), down[:, columns].shape[1])
        self.size = math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple):
            rows, *columns = index
            assert self._columns == slice(None) or not columns, "columns of columns"
            return MergedRows(
                self._values[rows],
                self._stored,
                part_of(self._scale, rows),
                self._up[rows],
                self._down,
                columns[0] if columns else self._columns,
            )
        base = scaled(to_f32(self._values[index], self._stored), part_of(self._scale, index))
        return base[:, self._columns] + self._up[index] @ self._down[:, self._columns]

    def reshape(self, *shape: int) -> MergedRows:
        assert shape in (self.shape, (-1, self.shape[1])), f"{self.shape} as {shape}"
        return self


class MergedSource(TensorSource):
    """A source whose tensors are those of another with deltas added; those that change are f32.

    name_of  parameter that a key stands for, as the loader has it
    """

    def __init__(self, source: TensorSource, deltas: Deltas, name_of: Callable[[str], str | None]) -> None:
        self.path, self.metadata = source.path, source.metadata
        self._source = source
        self._deltas = deltas
        named = ((key, name_of(key)) for key in source)
        self._names = {key: name for key, name in named if name is not None and name in deltas}

    def _named(self) -> Collection[str]:
        return self._source

    def shape(self, key: str) -> tuple[int, ...]:
        return self._source.shape(key)

    def dtype(self, key: str) -> str:
        return "F32" if key in self._names else self._source.dtype(key)

    def scale(self, key: str) -> np.ndarray | None:
        return None if key in self._names else self._source.scale(key)

    def natural_dtype(self, key: str) -> str:
        """That of the tensor without what is added. CheckpointError where rounding to it takes more than the sum."""
        dtype = self._source.natural_dtype(key)
        if key in self._names and needs_statistics(dtype):
            raise CheckpointError(
                f"{self.file(key)}: tensor {key!r} is {dtype}, to which sums cannot be rounded without statistics of "
                "activations; keep the LoRA apart (lora_mode)"
            )
        return dtype

    def file(self, key: str) -> Path:
        return self._source.file(key)

    @property
    def nbytes(self) -> int:
        return self._source.nbytes

    def read(self, key: str) -> Any:
        """As promised by TensorSource; of two-dimensional tensors that change, `MergedRows`."""
        if key not in self._names:
            return self._source.read(key)
        up, down = self._deltas.up(self._names[key]), self._deltas.down(self._names[key])
        if len(self.shape(key)) != 2:
            base = self._source.as_f32(key)
            return base + (up @ down).reshape(base.shape)
        source = self._source
        return MergedRows(source.read(key), source.dtype(key), source.scale(key), up, down)

    def as_f32(self, key: str) -> np.ndarray:
        if key not in self._names:
            return self._source.as_f32(key)
        values: np.ndarray = self.read(key)[:]
        return values


class FactorSource(TensorSource):
    """The factors of deltas, f32: KEY.down [R, K] and KEY.up [N, R], scales in the latter.

    names  of parameters, by their keys
    path   of the weights, for messages
    """

    def __init__(self, deltas: Deltas, names: Mapping[str, str], path: Path) -> None:
        self.path = path
        self.metadata = {}
        self._deltas = deltas
        self._names = names

    def _named(self) -> Collection[str]:
        return [f"{key}.{factor}" for key in self._names for factor in ("down", "up")]

    def shape(self, key: str) -> tuple[int, ...]:
        name, factor = self._of(key)
        rows, columns = self._deltas.shape(name)
        rank = self._deltas.rank(name)
        return (rank, columns) if factor == "down" else (rows, rank)

    def dtype(self, key: str) -> str:
        return "F32"

    def read(self, key: str) -> np.ndarray:
        name, factor = self._of(key)
        return self._deltas.down(name) if factor == "down" else self._deltas.up(name)

    @property
    def nbytes(self) -> int:
        return sum(4 * math.prod(self.shape(key)) for key in self)

    def _of(self, key: str) -> tuple[str, str]:
        module, _, factor = key.rpartition(".")
        return self._names[module], factor
