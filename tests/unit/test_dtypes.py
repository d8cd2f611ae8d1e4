"""Names of element types, and buffers of them."""

from __future__ import annotations

import numpy as np
import pytest

from edgedit import dtypes
from edgedit.parallel import Buffer
from edgedit.parallel.buffer import copy_elements


@pytest.mark.parametrize("name", list(dtypes.DTYPES))
def test_sizes_are_those_of_numpy_and_names_go_both_ways(name: str) -> None:
    assert dtypes.to_numpy(name).itemsize == dtypes.itemsize(name)
    assert dtypes.from_numpy(dtypes.to_numpy(name)) == name


def test_unknown_names_are_refused_with_the_legal_ones() -> None:
    with pytest.raises(ValueError, match=r"'f8'.*f32, f16, bf16"):
        dtypes.itemsize("f8")
    with pytest.raises(ValueError, match="complex64"):
        dtypes.from_numpy(np.dtype(np.complex64))


def test_bf16_rounds_to_the_nearest_and_ties_to_even() -> None:
    # bf16 keeps 8 bits of the mantissa: between 1 and 2 its step is 1/128.
    step = 1 / 128
    values = np.array(
        [1, 1 + 0.4 * step, 1 + 0.5 * step, 1 + 1.5 * step, 1 + 0.6 * step, -1.5, 0], np.float32
    )
    expected = [1, 1, 1, 1 + 2 * step, 1 + step, -1.5, 0]
    np.testing.assert_array_equal(
        dtypes.bf16_to_f32(dtypes.f32_to_bf16(values)), np.array(expected, np.float32)
    )


def test_bf16_keeps_infinities_and_nan_and_all_its_own_values() -> None:
    special = dtypes.bf16_to_f32(dtypes.f32_to_bf16(np.array([np.inf, -np.inf, np.nan], np.float32)))
    np.testing.assert_array_equal(special, [np.inf, -np.inf, np.nan])
    bits = np.arange(1 << 16, dtype=np.uint16)
    numbers = ~np.isnan(dtypes.bf16_to_f32(bits))
    np.testing.assert_array_equal(dtypes.f32_to_bf16(dtypes.bf16_to_f32(bits))[numbers], bits[numbers])


def test_a_buffer_is_the_memory_of_its_array() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer = Buffer.of(array)
    assert (buffer.count, buffer.dtype, buffer.nbytes, buffer.device) == (6, "f32", 24, "cpu")
    buffer.as_array()[4] = 40
    assert array[1, 1] == 40


def test_a_view_of_a_buffer_keeps_the_memory_alive() -> None:
    view = Buffer.of(np.full(1000, 7, np.int64)).as_array()
    junk = [np.zeros(1000, np.int64) for _ in range(50)]
    assert len(junk) == 50
    assert (view == 7).all()


def test_buffers_refuse_what_they_cannot_stand_for() -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        Buffer.of(np.zeros((4, 4), np.float32)[:, ::2])
    with pytest.raises(ValueError, match="null pointer"):
        Buffer(0, 1, "f32")
    with pytest.raises(ValueError, match="-1 elements"):
        Buffer(0, -1, "f32")
    with pytest.raises(ValueError, match="4 bytes an element"):
        Buffer.of(np.zeros(2, np.float32), "bf16")
    assert Buffer(0, 0, "bf16").as_array().shape == (0,)


def test_elements_are_copied_at_their_offsets() -> None:
    target = np.zeros(6, np.float16)
    copy_elements(Buffer.of(np.arange(5, dtype=np.float16)), 1, Buffer.of(target), 2, 3)
    np.testing.assert_array_equal(target, [0, 0, 1, 2, 3, 0])
