"""The exchange between sharded tokens and sharded heads, simulated with numpy: block copies and plain lists."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from edgedit.sequence.layouts import Direction, SPAllToAll4DBatchLayout, SPAllToAll4DLayout
from edgedit.sequence.split import SPSequenceSplit

INWARD, OUTWARD = Direction.SEQ_TO_HEAD, Direction.HEAD_TO_SEQ


def layouts_of(direction, lengths, size, heads, head_dim, planes, batch, mode):
    """The layout of every rank."""
    return [
        SPAllToAll4DBatchLayout(
            direction,
            tuple(SPSequenceSplit(length, size, rank, mode) for length in lengths),
            heads,
            head_dim,
            planes,
            batch,
        )
        for rank in range(size)
    ]


def window(array, shape, strides, offset):
    """The strided part of a packed array that a block copy names."""
    flat = array.reshape(-1)
    return as_strided(flat[offset:], shape, [stride * flat.itemsize for stride in strides])


def exchange(layouts, sends):
    """A plain all-to-all with counts."""
    size = len(layouts)
    starts = [np.cumsum((0, *layout.send_counts)) for layout in layouts]
    received = [
        np.concatenate([sends[source][starts[source][rank] : starts[source][rank + 1]] for source in range(size)])
        for rank in range(size)
    ]
    for layout, buffer, source_counts in zip(layouts, received, _announced(layouts), strict=True):
        assert layout.recv_counts == source_counts and buffer.size == sum(layout.recv_counts)
    return received


def _announced(layouts):
    return [tuple(layout.send_counts[rank] for layout in layouts) for rank in range(len(layouts))]


def random_streams(lengths, heads, head_dim, planes, batch):
    """Whole streams [planes, B, S, H, D], every value different."""
    counter = itertools.count()
    shapes = [(planes, batch, length, heads, head_dim) for length in lengths]
    return [np.array([next(counter) for _ in range(int(np.prod(s)))], np.float64).reshape(s) for s in shapes]


def share_of(whole, split, fill=np.nan):
    """This rank's slots of a whole stream [planes, B, S, H, D]; padding holds `fill`."""
    slots = np.full((*whole.shape[:2], split.local_length, *whole.shape[3:]), fill)
    count = split.valid_lengths[split.rank]
    slots[:, :, :count] = whole[:, :, split.local_offset : split.local_offset + count]
    return slots


shapes = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(0, 13), min_size=1, max_size=3).filter(any),
        "size": st.integers(1, 5),
        "extra_heads": st.integers(0, 4),
        "head_dim": st.integers(1, 3),
        "planes": st.integers(1, 3),
        "batch": st.integers(1, 3),
        "mode": st.sampled_from(["uneven", "pad"]),
    }
)


@settings(max_examples=150)
@given(shapes)
def test_tokens_become_heads_with_streams_in_joint_order(shape):
    size, planes = shape["size"], shape["planes"]
    heads = size + shape["extra_heads"]
    dims = (shape["lengths"], size, heads, shape["head_dim"], planes, shape["batch"], shape["mode"])
    layouts = layouts_of(INWARD, *dims)
    whole = random_streams(shape["lengths"], heads, shape["head_dim"], planes, shape["batch"])
    sends = []
    for layout in layouts:
        send = np.full(sum(layout.send_counts), -1.0)
        local = [share_of(stream, split) for stream, split in zip(whole, layout.splits, strict=True)]
        for copy in layout.sequence_side():
            source = window(local[copy.stream][copy.plane], copy.shape, copy.tensor_strides, copy.tensor_offset)
            window(send, copy.shape, copy.buffer_strides, copy.buffer_offset)[...] = source
        assert not (send == -1).any()
        sends.append(send)
    joint = np.concatenate(whole, axis=2)  # [planes, B, S, H, D]
    for layout, received in zip(layouts, exchange(layouts, sends), strict=True):
        result = np.full(layout.joint_shape, np.nan)
        for copy in layout.head_side():
            source = window(received, copy.shape, copy.buffer_strides, copy.buffer_offset)
            window(result, copy.shape, copy.tensor_strides, copy.tensor_offset)[...] = source
        first = sum(layout.heads[: layout.rank])
        own = joint[:, :, :, first : first + layout.num_local_heads]
        expected = np.moveaxis(own, 0, 3).reshape(layout.joint_shape)  # planes beside the channels
        np.testing.assert_array_equal(result, expected)


@settings(max_examples=150)
@given(shapes)
def test_heads_become_tokens_again(shape):
    size = shape["size"]
    heads = size + shape["extra_heads"]
    dims = (shape["lengths"], size, heads, shape["head_dim"], 1, shape["batch"], shape["mode"])
    layouts = layouts_of(OUTWARD, *dims)
    whole = random_streams(shape["lengths"], heads, shape["head_dim"], 1, shape["batch"])
    joint = np.concatenate(whole, axis=2)[0]  # [B, S, H, D]
    sends = []
    for layout in layouts:
        first = sum(layout.heads[: layout.rank])
        own = np.ascontiguousarray(joint[:, :, first : first + layout.num_local_heads])
        send = np.full(sum(layout.send_counts), np.nan)
        for copy in layout.head_side():
            source = window(own, copy.shape, copy.tensor_strides, copy.tensor_offset)
            window(send, copy.shape, copy.buffer_strides, copy.buffer_offset)[...] = source
        sends.append(send)
    for layout, received in zip(layouts, exchange(layouts, sends), strict=True):
        for stream, split in enumerate(layout.splits):
            result = np.full((layout.batch, split.local_length, heads, layout.head_dim), -1.0)
            for copy in layout.sequence_side():
                if copy.stream == stream:
                    source = window(received, copy.shape, copy.buffer_strides, copy.buffer_offset)
                    window(result, copy.shape, copy.tensor_strides, copy.tensor_offset)[...] = source
            np.testing.assert_array_equal(result, share_of(whole[stream], split)[0])


@pytest.mark.parametrize("direction", Direction)
def test_total_count_is_what_all_ranks_send_together(direction):
    layouts = layouts_of(direction, [7, 16], 3, 8, 4, 2, 2, "uneven")
    total = sum(sum(layout.send_counts) for layout in layouts)
    assert {layout.total_count for layout in layouts} == {total}


def test_thirty_heads_on_four_ranks_are_shared_unevenly():
    layout = layouts_of(INWARD, [4], 4, 30, 8, 3, 1, "uneven")[0]
    assert layout.heads == (8, 8, 7, 7)


def test_more_ranks_than_heads_are_refused_with_the_legal_degrees():
    with pytest.raises(ValueError, match="2 heads cannot be shared by 4 ranks; use 1 to 2"):
        layouts_of(INWARD, [4], 4, 2, 8, 3, 1, "uneven")


def test_the_layout_without_batch_axis_refuses_a_batch():
    splits = (SPSequenceSplit(4),)
    assert SPAllToAll4DLayout(INWARD, splits, 2, 8).batch == 1
    with pytest.raises(ValueError, match="batch 1, got 3"):
        SPAllToAll4DLayout(INWARD, splits, 2, 8, batch=3)


def test_streams_of_different_ranks_do_not_mix():
    with pytest.raises(ValueError, match="different ranks"):
        SPAllToAll4DBatchLayout(INWARD, (SPSequenceSplit(4, 2, 0), SPSequenceSplit(4, 2, 1)), 2, 8)
