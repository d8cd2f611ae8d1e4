"""The block copies of sequence/layouts.py against the index maps of csrc/layout.hpp, both sides."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from edgedit import _native
from edgedit.sequence.layouts import Direction, SPAllToAll4DBatchLayout
from edgedit.sequence.split import SPSequenceSplit

DTYPE = np.int64


def window(array, shape, strides, offset):
    flat = array.reshape(-1)
    return as_strided(flat[offset:], shape, [stride * flat.itemsize for stride in strides])


def copied(copies, tensor_of, size):
    """The buffer that the block copies fill from the tensors; 0 where they write nothing."""
    buffer = np.zeros(size, DTYPE)
    for copy in copies:
        if 0 in copy.shape:
            continue
        source = window(tensor_of(copy), copy.shape, copy.tensor_strides, copy.tensor_offset)
        window(buffer, copy.shape, copy.buffer_strides, copy.buffer_offset)[...] = source
    return buffer


@st.composite
def cases(draw):
    ranks = draw(st.integers(1, 8))
    return dict(
        ranks=ranks,
        rank=draw(st.integers(0, ranks - 1)),
        tokens=draw(st.lists(st.integers(1, 17), min_size=1, max_size=3)),
        heads=draw(st.integers(ranks, ranks + 9)),
        head_dim=draw(st.integers(1, 4)),
        planes=draw(st.sampled_from([1, 3])),
        batch=draw(st.integers(1, 3)),
        padded=draw(st.booleans()),
    )


@settings(max_examples=60, deadline=None)
@given(cases())
def test_block_copies_fill_both_sides_as_the_header_says(case):
    ranks, rank, tokens, heads, padded = (case[key] for key in ("ranks", "rank", "tokens", "heads", "padded"))
    head_dim, planes, batch = (case[key] for key in ("head_dim", "planes", "batch"))
    mode = "pad" if padded else "uneven"
    splits = tuple(SPSequenceSplit(count, ranks, rank, mode) for count in tokens)
    layout = SPAllToAll4DBatchLayout(Direction.SEQ_TO_HEAD, splits, heads, head_dim, planes, batch)
    sequence_counts, head_counts = _native.side_counts(**case)
    assert layout.send_counts == tuple(sequence_counts)
    assert layout.recv_counts == tuple(head_counts)

    start = 1
    streams = []
    for length in layout.local_lengths:
        shape = (planes, batch, length, heads, head_dim)
        size = int(np.prod(shape))
        streams.append(np.arange(start, start + size, dtype=DTYPE).reshape(shape))
        start += size
    buffer = copied(
        layout.sequence_side(), lambda copy: streams[copy.stream][copy.plane], sum(sequence_counts)
    )
    np.testing.assert_array_equal(
        buffer, _native.pack_seq_to_head(streams, ranks, rank, tokens, heads, padded)
    )

    own_heads = layout.num_local_heads
    joint = 1 + np.arange(planes * batch * sum(tokens) * own_heads * head_dim, dtype=DTYPE)
    joint = joint.reshape(planes, batch, sum(tokens), own_heads, head_dim)
    beside = np.ascontiguousarray(joint.transpose(1, 2, 3, 0, 4)).reshape(layout.joint_shape)
    buffer = copied(layout.head_side(), lambda copy: beside, sum(head_counts))
    np.testing.assert_array_equal(buffer, _native.pack_head_to_seq(joint, ranks, rank, tokens, heads, padded))


@pytest.mark.parametrize("mode", ["uneven", "pad"])
def test_shares_of_tokens_agree(mode):
    for ranks in range(1, 9):
        for total in range(1, 30):
            lengths = SPSequenceSplit(total, ranks, 0, mode).lengths
            expected = [_native.share(total, ranks, rank, mode == "pad")[1] for rank in range(ranks)]
            assert list(lengths) == expected
