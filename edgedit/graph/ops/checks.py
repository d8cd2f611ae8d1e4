"""Argument checks shared by the operations: ggml aborts the process on what these refuse."""

from __future__ import annotations

from edgedit.graph.tensor import Tensor


def require(condition: bool, op: str, rule: str, *tensors: Tensor) -> None:
    """Raise ValueError naming the operation, the rule and the tensors, unless the condition holds."""
    if not condition:
        raise ValueError(f"{op}: {rule}; got {', '.join(map(repr, tensors))}")


def require_dtype(op: str, x: Tensor, *dtypes: str) -> None:
    require(x.dtype in dtypes, op, f"{x.name} must be {' or '.join(dtypes)}", x)


def require_ndim(op: str, x: Tensor, ndim: int) -> None:
    require(x.ndim == ndim, op, f"{x.name} must have {ndim} dimensions", x)


def normalised_axis(op: str, x: Tensor, axis: int) -> int:
    """Axis counted from 0; negative axes count from the end, as in numpy."""
    require(-x.ndim <= axis < x.ndim, op, f"axis {axis} is outside 0..{x.ndim - 1}", x)
    return axis % x.ndim


def require_broadcast(op: str, shape: tuple[int, ...], *others: Tensor) -> None:
    """Each of the others must broadcast to a shape and have its whole last axis."""
    for y in others:
        padded = (1,) * (len(shape) - y.ndim) + y.shape
        fits = y.ndim <= len(shape) and padded[-1] == shape[-1]
        fits = fits and all(b in (a, 1) for a, b in zip(shape, padded, strict=True))
        require(fits, op, f"{y.name} must broadcast to {list(shape)}, with the same last axis", y)
