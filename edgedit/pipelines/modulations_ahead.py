"""The modulations of a request's steps, computed for many steps at once and never for too many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from edgedit.models.diffusion_transformer import DiffusionTransformer

# Rows (steps x batch) of one product. A row of FLUX.1-dev takes 4 MiB and its weights 6 to 12 GiB, which this many rows
# share; more would gain nothing.
MAX_ROWS = 64


def steps_at_once(num_steps: int, batch: int) -> int:
    """How many of the steps are computed at once: all of them, or the equal parts of at most MAX_ROWS rows."""
    parts = -(-num_steps // max(1, MAX_ROWS // batch))
    return -(-num_steps // parts)


class ModulationsAhead:
    """The modulations of each step of one guidance branch. What has been computed last is kept, no more.

    Arguments are those of `DiffusionTransformer.modulations`.
    """

    def __init__(
        self,
        transformer: DiffusionTransformer,
        timesteps: np.ndarray,
        pooled_projections: np.ndarray,
        guidance: np.ndarray | None,
    ) -> None:
        self._transformer = transformer
        self._timesteps = timesteps
        self._condition = pooled_projections, guidance
        self._count = steps_at_once(len(timesteps), len(pooled_projections))
        self._first = 0
        self._kept: np.ndarray | None = None

    def of(self, step: int) -> np.ndarray:
        """[B, M]; steps are meant to be asked for in order."""
        if self._kept is None or not self._first <= step < self._first + self._count:
            # always as many steps, so that one graph serves all parts: the last one may begin inside the one before
            self._first = min(step, len(self._timesteps) - self._count)
            part = self._timesteps[self._first : self._first + self._count]
            self._kept = None
            self._kept = self._transformer.modulations(part, *self._condition)
        return self._kept[step - self._first]
