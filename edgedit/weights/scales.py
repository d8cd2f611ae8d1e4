"""8-bit checkpoints: the tensors that hold factors of others.

    W = stored * scale        scale: one number for a weight, or one for each of its rows

Two spellings are in use, `MODULE.scale_weight` beside a marker `scaled_fp8`, and `MODULE.weight_scale`. Factors of
activations (`scale_input`, `input_scale`) only serve products in 8 bits and are not needed.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from edgedit.errors import CheckpointError
from edgedit.weights.checkpoint import listing
from edgedit.weights.fp8 import FP8_VALUES
from edgedit.weights.sources import TensorSource
from edgedit.weights.views import without

SCALES = (".scale_weight", ".weight_scale")
NOT_NEEDED = (".scale_input", ".input_scale")
MARKER = "scaled_fp8"
FORMAT = ".comfy_quant"
FORMATS = ("float8_e4m3fn", "float8_e5m2")
OTHER_SCHEMES = {
    ".weight_scale_inv": "a scale for each block of rows and columns",
    ".weight_scale_2": "two levels of scales",
    ".weight_zero_point": "zero points",
    ".absmax": "bitsandbytes blocks",
    ".quant_map": "bitsandbytes blocks",
    ".SCB": "bitsandbytes integers",
    ".qweight": "GPTQ or AWQ integers",
}


def with_scales(source: TensorSource) -> TensorSource:
    """The source, its factors applied and out of sight; the same object where there are none.

    Raises:
        CheckpointError: for a factor without its weight, of the wrong shape or not finite, for a weight that lacks
            its factor, and for schemes that are not supported.
    """
    keys = source.keys()
    _refuse_other_schemes(source, keys)
    scales: dict[str, np.ndarray] = {}
    hidden: set[str] = set()
    for key in keys:
        suffix = next((suffix for suffix in SCALES if key.endswith(suffix)), None)
        if suffix is not None:
            weight = key.removesuffix(suffix) + ".weight"
            hidden.add(key)
            if weight in scales:
                raise CheckpointError(f"{source.file(key)}: {weight!r} has two scales, one of them {key!r}")
            scales[weight] = _scale(source, key, weight)
        elif key.endswith((*NOT_NEEDED, FORMAT)) or key.rpartition(".")[2] == MARKER:
            hidden.add(key)
    _check_complete(source, hidden, scales)
    return without(source, hidden, scales=scales) if hidden else source


def _scale(source: TensorSource, key: str, weight: str) -> np.ndarray:
    file = source.file(key)
    if weight not in source:
        raise CheckpointError(f"{file}: scale {key!r} belongs to {weight!r}, which is not there")
    values = source.as_f32(key).reshape(-1)
    shape = source.shape(weight)
    if len(values) != 1 and (len(shape) != 2 or len(values) != shape[0]):
        raise CheckpointError(
            f"{file}: scale {key!r} has shape {list(source.shape(key))} for a weight of {list(shape)}; supported "
            "are one number, and one for each row"
        )
    if not np.isfinite(values).all() or not values.all():
        raise CheckpointError(f"{file}: scale {key!r} holds values that are not finite, or zeros")
    return values if len(values) == 1 else values[:, None]


def _check_complete(source: TensorSource, hidden: set[str], scales: dict[str, np.ndarray]) -> None:
    """Where a file says that its weights are scaled, each must have its scale."""
    missing = []
    for key in hidden:
        if key.endswith(FORMAT):
            weight = key.removesuffix(FORMAT) + ".weight"
            _check_format(source, key)
            missing += [weight] if weight not in scales else []
        elif key.rpartition(".")[2] == MARKER:
            prefix = key.removesuffix(MARKER)
            missing += [
                weight
                for weight in source
                if weight.startswith(prefix) and source.dtype(weight) in FP8_VALUES
                if weight not in scales and weight not in hidden
            ]
    if missing:
        raise CheckpointError(f"{source.path}: weights are said to be scaled but have no scale: {listing(missing)}")


def _check_format(source: TensorSource, key: str) -> None:
    try:
        content: Any = json.loads(source.read(key).tobytes())
        form = content["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CheckpointError(f"{source.file(key)}: {key!r} does not say how its weight is quantised") from None
    if form not in FORMATS:
        raise CheckpointError(
            f"{source.file(key)}: {key!r} says {form!r}; supported: {', '.join(FORMATS)}"
        )


def _refuse_other_schemes(source: TensorSource, keys: list[str]) -> None:
    for key in keys:
        for suffix, what in OTHER_SCHEMES.items():
            if key.endswith(suffix):
                raise CheckpointError(f"{source.file(key)}: {key!r} belongs to {what}, which is not supported")
