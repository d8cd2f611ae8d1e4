"""Random weights of a given spread in any stored type, a piece at a time, fast enough for billions of them.

Blocks of quantised types are made directly: random bytes, in which only the scales are chosen. Their values are as
spread as those that were asked for and use all of a type's levels, but they are nobody's rounding: a checkpoint of them
measures loading, memory and time, not quality.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from edgedit.dtypes import f32_to_bf16
from edgedit.graph import _ggml
from edgedit.weights.convert import to_f32

PIECE = 1 << 22  # values held at once
SAMPLE_BLOCKS = 4096


@dataclass(frozen=True)
class Scales:
    """Where a block type keeps its f16 factors; nibbles and halves are [begin, end) of bytes.

    factor   byte offset of the factor of the levels
    offset   byte offset of what is added or subtracted, None where the type has no such
    balance  value of that one, in units of the factor, which makes the mean 0
    nibbles  of bytes whose low and high half are scale and offset of a part of the block
    halves   of bytes whose first half is for scales and whose second half is for offsets
    """

    factor: int
    offset: int | None = None
    balance: float = 0.0
    nibbles: tuple[int, int] = (0, 0)
    halves: tuple[int, int] = (0, 0)


SCALES = {
    "q8_0": Scales(0),
    "q4_0": Scales(0),
    "q4_1": Scales(0, 2, -7.5),
    "q5_0": Scales(0),
    "q5_1": Scales(0, 2, -15.5),
    "q2_k": Scales(80, 82, 1.5, nibbles=(0, 16)),
    "q3_k": Scales(108),
    "q4_k": Scales(0, 2, 7.5, nibbles=(12, 16), halves=(4, 12)),
    "q5_k": Scales(0, 2, 15.5, nibbles=(12, 16), halves=(4, 12)),
    "q6_k": Scales(208),
}
TYPES = ("f32", "f16", "bf16", *SCALES)


def pieces(key: str, count: int, dtype: str, mean: float, deviation: float) -> Iterator[np.ndarray]:
    """Contiguous arrays that together are `count` values of `dtype`; the same for the same key.

    count is a multiple of the type's block. The mean of quantised values is 0, whatever `mean`.
    """
    rng = np.random.Generator(np.random.SFC64(zlib.crc32(key.encode())))
    for begin in range(0, count, PIECE):
        number = min(PIECE, count - begin)
        if dtype in SCALES:
            yield random_blocks(rng, number // _ggml.block_size(dtype), dtype, deviation)
            continue
        values = rng.standard_normal(number, np.float32) * np.float32(deviation) + np.float32(mean)
        yield {"f32": np.asarray, "f16": np.float16, "bf16": f32_to_bf16}[dtype](values)


def random_blocks(rng: np.random.Generator, count: int, dtype: str, deviation: float) -> np.ndarray:
    """`count` blocks, uint8 [count, bytes], whose values have mean 0 and this deviation over all blocks."""
    return _blocks(rng, count, dtype, deviation / _spread(dtype))


@cache
def _spread(dtype: str) -> float:
    """Deviation of the values of blocks whose factors are around 1."""
    blocks = _blocks(np.random.default_rng(0), SAMPLE_BLOCKS, dtype, 1.0)
    return float(to_f32(blocks, dtype.upper()).std())


def _blocks(rng: np.random.Generator, count: int, dtype: str, size: float) -> np.ndarray:
    """Blocks whose factors are around `size`. Scales and offsets inside a block are equal, so that its parts have mean
    0 as well; types without offsets have factors of either sign, as theirs are, since their levels have a mean."""
    scales, nbytes = SCALES[dtype], _ggml.row_nbytes(dtype, _ggml.block_size(dtype))
    blocks = np.frombuffer(bytearray(rng.bytes(count * nbytes)), np.uint8).reshape(count, nbytes)
    nibbles, halves = blocks[:, slice(*scales.nibbles)], blocks[:, slice(*scales.halves)]
    nibbles[:] = (nibbles & 15) * 17
    halves[:, halves.shape[1] // 2 :] = halves[:, : halves.shape[1] // 2]
    factor = rng.uniform(0.5, 1.5, count) * size
    if scales.offset is None:
        factor *= rng.choice([-1.0, 1.0], count)
    else:
        _set(blocks, scales.offset, factor * scales.balance)
    _set(blocks, scales.factor, factor)
    return blocks


def _set(blocks: np.ndarray, at: int, values: np.ndarray) -> None:
    blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)
