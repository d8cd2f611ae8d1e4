"""Types of tensors in files: which each tensor of a converted one gets, and what they take."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgedit.graph import _ggml
from edgedit.weights.convert import SHORT_BLOCKS
from edgedit.weights.safetensors import ITEMSIZE

AS_STORED = "stored"
PLAIN = ("f32", "f16", "bf16")
SMALL = 1024  # elements up to which nothing is won


def needs_statistics(dtype: str) -> bool:
    """Whether ggml needs statistics of activations to quantise to a type."""
    return bool(_ggml.lib.ggml_quantize_requires_imatrix(_ggml.TYPE_IDS[dtype]))


QUANTISED_TO = tuple(name for name in _ggml.QUANTISED_IDS if not needs_statistics(name))
TYPES = (*PLAIN, *QUANTISED_TO)
# Types of a stored one that GGUF does not have, without loss.
_WIDENED = {"F64": "f32", "F8_E4M3": "bf16", "F8_E5M2": "bf16"}


@dataclass(frozen=True)
class Rule:
    """Tensors in whose name `pattern` is found have type `dtype`, one of TYPES or AS_STORED."""

    pattern: re.Pattern[str]
    dtype: str

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Of "REGEX=TYPE". ValueError for anything else."""
        pattern, equals, dtype = text.rpartition("=")
        if not equals or not pattern:
            raise ValueError(f"rule {text!r} is not of the form REGEX=TYPE")
        try:
            return cls(re.compile(pattern), check_type(dtype, AS_STORED))
        except re.error as error:
            raise ValueError(f"rule {text!r}: {pattern!r} is no regular expression: {error}") from None


def stored_nbytes(stored: str, shape: Sequence[int]) -> int:
    """Bytes that a tensor takes in a file, in a type as a TensorSource spells it."""
    count = math.prod(shape)
    return count * ITEMSIZE[stored] if stored in ITEMSIZE else _ggml.row_nbytes(stored.lower(), count)


def check_type(dtype: str, *others: str) -> str:
    """Return `dtype`, or raise ValueError listing TYPES and `others`."""
    legal = (*TYPES, *others)
    if dtype not in legal:
        known = dtype in _ggml.QUANTISED_IDS
        why = f"type {dtype!r} needs statistics of activations" if known else f"unknown type {dtype!r}"
        raise ValueError(f"{why}; legal: {', '.join(legal)}")
    return dtype


def choose_type(
    name: str, shape: Sequence[int], stored: set[str], dtype: str, rules: Sequence[Rule]
) -> str:
    """Type of a tensor: that of the first rule that matches its name, of those with a quantised type only if it is a
    matrix; then f32 if it has one axis or is small; `dtype` for all others, but for what does not fill its blocks: q8_0
    for matrices that fill the shorter blocks of that, f16 for the rest and for convolutions.

    `stored` are the types of what it is made of. ValueError where a rule asks for blocks that rows do not fill.
    """
    for rule in rules:
        if not rule.pattern.search(name) or (rule.dtype in QUANTISED_TO and len(shape) != 2):
            continue
        chosen = _as_stored(stored) if rule.dtype == AS_STORED else rule.dtype
        if not _fits(shape, chosen):
            raise ValueError(
                f"rule {rule.pattern.pattern!r}: rows of {name}, {shape[-1]} elements, do not fill blocks of "
                f"{chosen}, which have {_ggml.block_size(chosen)}"
            )
        return chosen
    if dtype == AS_STORED:
        return _as_stored(stored)
    if len(shape) < 2 or math.prod(shape) <= SMALL:
        return "f32"
    candidates = (dtype, SHORT_BLOCKS) if len(shape) == 2 or dtype in PLAIN else ()
    return next((candidate for candidate in candidates if _fits(shape, candidate)), "f16")


def _fits(shape: Sequence[int], dtype: str) -> bool:
    return (shape[-1] if shape else 1) % _ggml.block_size(dtype) == 0


def _as_stored(stored: set[str]) -> str:
    if len(stored) > 1:
        return "f32"
    (only,) = stored
    return _WIDENED.get(only) or only.lower()
