"""Attention and softmax."""

from __future__ import annotations

import math

from edgedit import _native
from edgedit.dtypes import itemsize
from edgedit.graph._ggml import lib
from edgedit.graph.ops.checks import require, require_dtype, require_ndim
from edgedit.graph.ops.linear import LinearOps
from edgedit.graph.ops.rope import RopeOps
from edgedit.graph.tensor import Tensor
from edgedit.kernels import PORTABLE

_TO_HEADS = (0, 2, 1, 3)  # [B, S, H, D] -> [B, H, S, D]
_MERGE_FLOPS = 3  # a channel: two products and a sum


class AttentionOps(LinearOps, RopeOps):
    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float | None = None,
        mask: Tensor | None = None,
        dtype: str = "f32",
    ) -> Tensor:
        """softmax(q k^T scale + mask) v, in one pass.

        q [B, Sq, H, D], k and v [B, Sk, H, D] (strided views are fine): [B, Sq, H * D] of type `dtype`.
        `mask`, f16 or f32, is [Sq, Sk], [H, Sq, Sk] or [B, H, Sq, Sk], where B, H and Sq may be 1; `scale` is
        1/sqrt(D) unless given. A row of which every key is masked (-inf) has no defined result.
        """
        _check(q, k, v, mask)
        batch, queries, heads, head_dim = q.shape
        scale = _scale(q, scale)
        if self.fuses("attention"):
            out = self._attention_node("attention", q, k, v, scale, mask, q.shape, dtype)
        else:
            out = self._stock_attention(q, k, v, scale, mask)
        return self.cast(self.reshape(out, (batch, queries, heads * head_dim)), dtype)

    def attention_partial(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Attention to some of the keys, to be merged with that to others: [B, Sq, H, D + 1], f32.

        Arguments as of `attention`. The last channel is the natural logarithm of the sum of the exponentials of a
        query's scores. A row of which every key is masked is 0, and its last channel -inf. Where stock nodes do the
        rest, portable kernels do this.
        """
        _check(q, k, v, mask)
        shape = (*q.shape[:-1], q.shape[-1] + 1)
        return self._attention_node("attention_partial", q, k, v, _scale(q, scale), mask, shape, "f32")

    def attention_merge(self, a: Tensor, b: Tensor) -> Tensor:
        """What `attention_partial` gives for the keys of both, in the place of `a`: nothing else may read that."""
        _check_parts(a, b)
        spec = _native.ops.MergeSpec()
        return self._fused("attention_merge", (b,), a.shape, "f32", spec, _MERGE_FLOPS * a.count, into=a)

    def attention_merged(self, a: Tensor, b: Tensor, dtype: str = "f32") -> Tensor:
        """What `attention` gives for the keys of both parts: [B, Sq, H * D] of type `dtype`."""
        _check_parts(a, b)
        batch, queries, heads, channels = a.shape
        shape, spec = (batch, queries, heads, channels - 1), _native.ops.MergeSpec()
        out = self._fused("attention_merge", (a, b), shape, dtype, spec, _MERGE_FLOPS * a.count)
        return self.reshape(out, (batch, queries, heads * (channels - 1)))

    def _attention_node(
        self,
        operator: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        mask: Tensor | None,
        shape: tuple[int, ...],
        dtype: str,
    ) -> Tensor:
        """[B, Sq, H, D] or more channels, by a kernel."""
        sources = [x if x.strides[-1] == itemsize(x.dtype) else self.contiguous(x) for x in (q, k, v)]
        if mask is not None:
            sources.append(mask if mask.strides[-1] == itemsize(mask.dtype) else self.contiguous(mask))
        family = PORTABLE if self.kernels == "ggml" else self.kernels
        # where activations are bf16, so is what is multiplied here
        spec = _native.ops.AttentionSpec(family, self.activations, scale, mask is not None)
        return self._fused(operator, sources, shape, dtype, spec, 4 * q.count * k.shape[1])

    def _stock_attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
        """[B, Sq, H, D] by ggml's nodes."""
        q, k, v = (self.permute(x, _TO_HEADS) for x in (q, k, v))
        # ggml's fused attention takes q in f32 and a mask in f16, and is slow on k and v in bf16
        q, k, v = (self.cast(x, "f32") if x.dtype == "bf16" else x for x in (q, k, v))
        if mask is not None and mask.dtype == "f32":
            return self._attention_by_products(self.cast(q, "f32"), k, v, scale, mask)
        return self._flash_attention(self.cast(q, "f32"), k, v, scale, mask)

    def _flash_attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
        """q, k, v [B, H, S, D] -> [B, Sq, H, D], one stock node."""
        batch, heads, queries, head_dim = q.shape
        if mask is not None:
            mask = self._whole_mask(mask, queries)
        pointer = lib.ggml_flash_attn_ext(
            self._context,
            *(x.pointer for x in (q, k, v)),
            mask.pointer if mask else None,
            scale,
            0.0,
            0.0,
        )
        lib.ggml_flash_attn_ext_set_prec(pointer, lib.GGML_PREC_F32)
        return self._emit(pointer, (batch, queries, heads, head_dim), "attention")

    def _attention_by_products(self, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor) -> Tensor:
        """The same with a mask in f32, which ggml's fused node would round."""
        mask = self._whole_mask(mask, q.shape[2])
        weights = self.softmax(self.matmul(q, self.cast(k, "f32")), scale, mask)
        columns = self.contiguous(self.permute(self.cast(v, "f32"), (0, 1, 3, 2)))
        return self.contiguous(self.permute(self.matmul(weights, columns), _TO_HEADS))

    def _whole_mask(self, mask: Tensor, queries: int) -> Tensor:
        """Packed, with a row for every query: what ggml broadcasts is heads and pictures only."""
        if mask.shape[-2] == queries:
            return self.contiguous(mask)
        return self.repeat(self.contiguous(mask), (*mask.shape[:-2], queries, mask.shape[-1]))

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


def _scale(q: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    for x in (q, k, v):
        require_ndim("attention", x, 4)
        require_dtype("attention", x, "f32", "f16", "bf16")
    batch, _, heads, head_dim = q.shape
    fits = k.shape == v.shape and k.shape[0] == batch and k.shape[2:] == (heads, head_dim)
    require(fits, "attention", "k and v must be [B, Sk, H, D] like q", q, k, v)
    # ggml dies on 0 heads and has no meaning for 0 keys
    require(min(*q.shape, k.shape[1]) > 0, "attention", "0 tokens or heads", q, k)
    if mask is not None:
        _check_mask(mask, q, k)


def _check_parts(a: Tensor, b: Tensor) -> None:
    fits = a.shape == b.shape and a.ndim == 4 and a.dtype == b.dtype == "f32"
    require(fits, "attention_merge", "both must be f32 [B, Sq, H, D + 1]", a, b)


def _check_mask(mask: Tensor, q: Tensor, k: Tensor) -> None:
    require_dtype("attention", mask, "f16", "f32")
    batch, queries, heads, _ = q.shape
    whole = (batch, heads, queries, k.shape[1])
    fits = 2 <= mask.ndim <= 4 and mask.shape[-1] == whole[-1]
    fits = fits and all(a in (b, 1) for a, b in zip(mask.shape[:-1], whole[-mask.ndim : -1], strict=True))
    rule = "the mask must be [Sq, Sk], [H, Sq, Sk] or [B, H, Sq, Sk]"
    require(fits, "attention", rule, mask, q, k)
