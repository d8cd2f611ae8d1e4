"""Attention, softmax and rotary position embedding."""

from __future__ import annotations

import math

from edgedit.graph._ggml import lib
from edgedit.graph.ops.checks import require, require_dtype, require_ndim
from edgedit.graph.ops.linear import LinearOps
from edgedit.graph.tensor import Tensor


class AttentionOps(LinearOps):
    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """softmax(q k^T scale + mask) v, fused.

        q [B, Sq, H, D], k and v [B, Sk, H, D] (strided views are fine): [B, Sq, H * D].
        `mask` is f16 [Sq, Sk]; `scale` is 1/sqrt(D) unless given.
        """
        for x in (q, k, v):
            require_ndim("attention", x, 4)
        batch, queries, heads, head_dim = q.shape
        fits = k.shape == v.shape and k.shape[0] == batch and k.shape[2:] == (heads, head_dim)
        require(fits, "attention", "k and v must be [B, Sk, H, D] like q", q, k, v)
        # ggml dies on 0 heads and has no meaning for 0 keys
        require(min(*q.shape, k.shape[1]) > 0, "attention", "0 tokens or heads", q, k)
        if mask is not None:
            require_dtype("attention", mask, "f16")
            require(mask.shape == (queries, k.shape[1]), "attention", "the mask must be [Sq, Sk]", mask, q, k)
        to_heads = (0, 2, 1, 3)  # [B, S, H, D] -> [B, H, S, D]
        pointer = lib.ggml_flash_attn_ext(
            self._context,
            *(self.permute(x, to_heads).pointer for x in (q, k, v)),
            mask.pointer if mask else None,
            1.0 / math.sqrt(head_dim) if scale is None else scale,
            0.0,
            0.0,
        )
        lib.ggml_flash_attn_ext_set_prec(pointer, lib.GGML_PREC_F32)
        out = self._emit(pointer, (batch, queries, heads, head_dim), "attention")
        return self.reshape(out, (batch, queries, heads * head_dim))

    def softmax(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> Tensor:
        """softmax(x * scale + mask) over the last axis; mask f32 [Sq, Sk] or [H, Sq, Sk] for x [B, H, Sq, Sk]."""
        x = self.contiguous(x)
        if mask is not None:
            require_dtype("softmax", mask, "f32", "f16")
            padded = (1,) * (x.ndim - mask.ndim) + mask.shape
            fits = len(padded) == x.ndim >= 2 and padded[-2:] == x.shape[-2:]
            fits = fits and all(a % b == 0 for a, b in zip(x.shape[:-2], padded[:-2], strict=False))
            require(fits, "softmax", "the mask must broadcast to x", x, mask)
        pointer = lib.ggml_soft_max_ext(self._context, x.pointer, mask.pointer if mask else None, scale, 0.0)
        return self._emit(pointer, x.shape, "softmax")

    def rope(self, x: Tensor, positions: Tensor, periods: Tensor) -> Tensor:
        """Rotate neighbouring channel pairs (2i, 2i+1) of x [B, S, H, D] by position / periods[i] [Su et al. 2021].

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
