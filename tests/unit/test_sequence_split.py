"""How token streams are shared: plain arithmetic against numpy's own splitting."""

import numpy as np
import pytest

from edgedit.sequence.split import SPSequenceSplit


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 17, 97, 105])
def test_uneven_shares_are_those_of_array_split(length, size):
    pieces = np.array_split(np.arange(length), size)
    for rank, piece in enumerate(pieces):
        split = SPSequenceSplit(length, size, rank)
        assert split.local_length == len(piece)
        assert split.padding == 0 and split.padded_length == length
        assert list(range(split.local_offset, split.local_offset + split.local_length)) == piece.tolist()
        assert split.valid_lengths == split.lengths


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 9, 17, 97, 105])
def test_padded_shares_are_equal_and_their_valid_tokens_cover_the_stream(length, size):
    split = SPSequenceSplit(length, size, 0, "pad")
    slots = -(-length // size)
    assert split.lengths == (slots,) * size
    assert split.padding == slots * size - length
    tokens = [token for rank in range(size) for token in _valid_tokens(length, size, rank)]
    assert tokens == list(range(length))


def _valid_tokens(length, size, rank):
    split = SPSequenceSplit(length, size, rank, "pad")
    return range(split.offsets[rank], split.offsets[rank] + split.valid_lengths[rank])


def test_a_whole_share_may_be_padding():
    assert SPSequenceSplit(9, 4, 0, "pad").valid_lengths == (3, 3, 3, 0)
    assert SPSequenceSplit(1, 4, 0, "pad").valid_lengths == (1, 0, 0, 0)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((-1, 2, 0), "-1 tokens"),
        ((4, 2, 2), "rank 2 is outside the group of 2"),
        ((4, 2, 0, "even"), "'even'.*uneven or pad"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        SPSequenceSplit(*arguments)
