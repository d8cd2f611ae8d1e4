"""Floating-point operations of a ggml node, one multiply-add counted as two."""

from __future__ import annotations

import math

from edgedit.graph.tensor import TensorFields

_FREE = {"none", "view", "reshape", "permute", "transpose", "custom"}


def count_flops(op: str, fields: TensorFields) -> int:
    """Operations of one node; elementwise nodes count one per element."""
    if op in _FREE:
        return 0
    elements = math.prod(fields.shape)
    if op == "mul_mat":
        return 2 * elements * TensorFields.at(fields.sources[0]).shape[0]
    if op == "flash_attn_ext":
        head_dim, queries, heads, batch = TensorFields.at(fields.sources[0]).shape
        keys = TensorFields.at(fields.sources[1]).shape[1]
        return 4 * head_dim * queries * heads * batch * keys
    if op == "conv_2d":
        return 2 * elements * math.prod(TensorFields.at(fields.sources[0]).shape[:3])
    return elements
