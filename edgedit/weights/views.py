"""Sources made of others: tensors under other names, rows of them, values with their scales."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgedit.errors import CheckpointError
from edgedit.weights.convert import is_quantised
from edgedit.weights.name_map import Target
from edgedit.weights.sources import TensorSource


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a tensor of a view comes from: a tensor below, and what of it."""

    key: str
    target: Target


class View(TensorSource):
    """Tensors of a source under other names. Rows and halves are only taken out when they are read.

    origins  by the names of the view
    made     f32 tensors that the source does not hold
    scales   factors, as `TensorSource.scale` has them, by the names of the source
    """

    def __init__(
        self,
        source: TensorSource,
        origins: Mapping[str, Origin],
        made: Mapping[str, np.ndarray] | None = None,
        scales: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.path, self.metadata = source.path, source.metadata
        self.source = source
        self.origins = dict(origins)
        self.made = dict(made or {})
        self.scales = dict(scales or {})
        self._keys = dict.fromkeys([*self.origins, *self.made])

    def _named(self) -> Collection[str]:
        return self._keys

    def file(self, key: str) -> Path:
        return self.path if key in self.made else self.source.file(self.origins[key].key)

    def dtype(self, key: str) -> str:
        return "F32" if key in self.made else self.source.dtype(self.origins[key].key)

    def shape(self, key: str) -> tuple[int, ...]:
        if key in self.made:
            return self.made[key].shape
        origin = self.origins[key]
        shape = self.source.shape(origin.key)
        if origin.target.transpose:
            return shape[::-1]
        if origin.target.is_whole:
            return shape
        begin, end = self._rows(origin)
        return (end - begin, *shape[1:])

    @property
    def nbytes(self) -> int:
        shares = (
            self.source.read(origin.key).nbytes * (origin.target.end - origin.target.begin) // origin.target.of
            for origin in self.origins.values()
        )
        return sum(shares) + sum(values.nbytes for values in self.made.values())

    def read(self, key: str) -> np.ndarray:
        """As `TensorSource.read`; swapped halves and turned matrices are copies."""
        if key in self.made:
            return self.made[key]
        origin = self.origins[key]
        return self._taken(origin, self.source.read(origin.key))

    def scale(self, key: str) -> np.ndarray | None:
        if key in self.made:
            return None
        origin = self.origins[key]
        scale = self.scales.get(origin.key)
        if scale is None:
            scale = self.source.scale(origin.key)
        if scale is None or scale.ndim == 1:
            return scale
        if origin.target.transpose:
            raise CheckpointError(f"{self.path}: {origin.key!r} has a scale for each row and cannot be turned over")
        return self._taken(origin, scale)

    def natural_dtype(self, key: str) -> str:
        return "f32" if key in self.made else self.source.natural_dtype(self.origins[key].key)

    def _taken(self, origin: Origin, values: np.ndarray) -> np.ndarray:
        target = origin.target
        if target.transpose:
            if is_quantised(self.source.dtype(origin.key)):
                raise CheckpointError(f"{self.path}: {origin.key!r} is quantised and cannot be turned over")
            return np.ascontiguousarray(values.T)
        if not target.is_whole:
            begin, end = self._rows(origin)
            values = values[begin:end]
        if target.swap:
            half = len(values) // 2
            values = np.concatenate([values[half:], values[:half]])
        return values

    def _rows(self, origin: Origin) -> tuple[int, int]:
        target, shape = origin.target, self.source.shape(origin.key)
        rows = shape[0] if shape else 0
        if rows % target.of:
            raise CheckpointError(
                f"{self.source.file(origin.key)}: tensor {origin.key!r} has shape {list(shape)}; its rows hold "
                f"{target.of} equal shares of {target.name} and others"
            )
        share = rows // target.of
        return target.begin * share, target.end * share


def without(
    source: TensorSource,
    hidden: Collection[str],
    made: Mapping[str, np.ndarray] | None = None,
    scales: Mapping[str, np.ndarray] | None = None,
) -> View:
    """A source without some tensors, and with others, or with factors, of the view's own."""
    kept = {key: Origin(key, Target(key)) for key in source if key not in hidden}
    return View(source, kept, made, scales)
