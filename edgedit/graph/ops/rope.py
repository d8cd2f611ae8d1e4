"""Rotary position embedding [Su et al. 2021]."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

from edgedit import _native
from edgedit.graph._ggml import lib
from edgedit.graph.ops.checks import require, require_dtype, require_ndim
from edgedit.graph.ops.fused import FusedOps
from edgedit.graph.tensor import Tensor


class RopeOps(FusedOps):
    def __init__(self, name: str = "graph", ops: str = "auto", **choices: str) -> None:
        super().__init__(name, ops, **choices)
        self._rope_tables: dict[tuple[int, ...], Tensor] = {}

    def rope(self, x: Tensor, positions: Tensor, periods: Tensor) -> Tensor:
        """Rotate neighbouring channel pairs (2i, 2i+1) of x [B, S, H, D] by position / periods[i].

        positions i32 [S], periods f32 [D / 2]: [B, S, H, D].
        """
        require_ndim("rope", x, 4)
        require_dtype("rope", x, "f32")
        require_dtype("rope", positions, "i32")
        head_dim = x.shape[3]
        fits = positions.shape == (x.shape[1],) and periods.shape == (head_dim // 2,) and head_dim % 2 == 0
        require(fits, "rope", "x [B, S, H, D] needs positions [S] and periods [D/2]", x, positions, periods)
        # the periods stand in ggml's frequency factors with base 1, so every angle is one exact division;
        # the extrapolation parameters (YaRN) are switched off
        pointer = lib.ggml_rope_ext(
            self._context,
            x.pointer,
            positions.pointer,
            periods.pointer,
            head_dim,
            lib.GGML_ROPE_TYPE_NORMAL,
            0,
            1.0,
            1.0,
            0.0,
            1.0,
            0.0,
            0.0,
        )
        return self._emit(pointer, x.shape, "rope")

    def rope_table(self, positions: Tensor, periods: Sequence[Tensor]) -> Tensor:
        """Cosine and sine of position / period: positions i32 [axes, s], one f32 [d_a / 2] each: [s, D / 2, 2].

        The same arguments give the same node, so that all blocks of a network share it.
        """
        require_ndim("rope_table", positions, 2)
        require_dtype("rope_table", positions, "i32")
        require(positions.shape[0] == len(periods), "rope_table", "one axis per periods", positions, *periods)
        for period in periods:
            require_ndim("rope_table", period, 1)
            require_dtype("rope_table", period, "f32")
        key = tuple(ctypes.addressof(x.pointer.contents) for x in (positions, *periods))
        if key not in self._rope_tables:
            pairs = sum(period.count for period in periods)
            shape = (positions.shape[1], pairs, 2)
            spec = _native.ops.RopeTableSpec(len(periods))
            table = self._fused("rope_table", (positions, *periods), shape, "f32", spec, math.prod(shape))
            self._rope_tables[key] = table
        return self._rope_tables[key]
