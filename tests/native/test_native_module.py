"""edgedit._native: layout functions against numpy slicing and a plain all-to-all, facts about the build."""

import ctypes
import itertools
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgedit import _native

HEAD_DIM = 3
CASES = [
    # ranks, heads, tokens of each stream, planes, batch
    (1, 2, (5,), 3, 1),
    (2, 3, (7,), 1, 2),
    (3, 7, (5, 11), 3, 1),
    (4, 30, (1, 3), 1, 1),
    (5, 8, (2, 3, 4), 3, 2),
    (7, 8, (0, 16), 1, 1),
    (4, 2, (9,), 3, 1),
]


def shares(total: int, ranks: int, padded: bool) -> list[np.ndarray]:
    """Global indices of each rank; -1 for padding."""
    if not padded:
        return np.array_split(np.arange(total), ranks)
    slots = -(-total // ranks) * ranks
    indices = np.where(np.arange(slots) < total, np.arange(slots), -1)
    return np.split(indices, ranks)


def take(stream: np.ndarray, tokens: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """Tokens and heads of [K, B, S, H, D], padding tokens as zeros."""
    picked = stream[:, :, tokens][:, :, :, heads].copy()
    picked[:, :, tokens < 0] = 0
    return picked


def block(streams: list[np.ndarray], tokens: list[np.ndarray], heads: np.ndarray) -> np.ndarray:
    """One peer's block: [streams][B][tokens][heads][K][D], flattened."""
    parts = [
        take(stream, own, heads).transpose(1, 2, 3, 0, 4).ravel()
        for stream, own in zip(streams, tokens, strict=True)
    ]
    return np.concatenate(parts)


def all_to_all(sends: list[np.ndarray], counts: list[list[int]]) -> list[np.ndarray]:
    """Block p of rank r's buffer becomes block r of rank p's."""
    blocks = [np.split(send, np.cumsum(count)[:-1]) for send, count in zip(sends, counts, strict=True)]
    return [
        np.concatenate([blocks[source][rank] for source in range(len(sends))]) for rank in range(len(sends))
    ]


def global_streams(
    heads: int, tokens: tuple[int, ...], planes: int, batch: int, dtype: str
) -> list[np.ndarray]:
    """Streams [K, B, S, H, D] in which every element differs."""
    start = 1
    streams = []
    for count in tokens:
        size = planes * batch * count * heads * HEAD_DIM
        streams.append(
            np.arange(start, start + size).astype(dtype).reshape(planes, batch, count, heads, HEAD_DIM)
        )
        start += size
    return streams


@pytest.mark.parametrize("padded", [False, True], ids=["uneven", "padded"])
@pytest.mark.parametrize("ranks,heads,tokens,planes,batch", CASES)
def test_packed_buffers_equal_numpy_slices_in_both_directions(ranks, heads, tokens, planes, batch, padded):
    streams = global_streams(heads, tokens, planes, batch, "f4")
    own_heads = shares(heads, ranks, False)
    own_tokens = [[shares(count, ranks, padded)[rank] for count in tokens] for rank in range(ranks)]
    joint = np.concatenate(streams, axis=2)
    for rank in range(ranks):
        local = [
            take(stream, own, np.arange(heads)) for stream, own in zip(streams, own_tokens[rank], strict=True)
        ]
        send = _native.pack_seq_to_head(local, ranks, rank, tokens, heads, padded)
        expected = [block(streams, own_tokens[rank], own_heads[peer]) for peer in range(ranks)]
        np.testing.assert_array_equal(send, np.concatenate(expected))
        sequence_counts, head_counts = _native.side_counts(
            ranks, rank, tokens, heads, HEAD_DIM, planes, batch, padded
        )
        assert sequence_counts == [part.size for part in expected]

        send = _native.pack_head_to_seq(joint[:, :, :, own_heads[rank]], ranks, rank, tokens, heads, padded)
        expected = [block(streams, own_tokens[peer], own_heads[rank]) for peer in range(ranks)]
        np.testing.assert_array_equal(send, np.concatenate(expected))
        assert head_counts == [part.size for part in expected]


@pytest.mark.parametrize("padded", [False, True], ids=["uneven", "padded"])
@pytest.mark.parametrize("ranks,heads,tokens,planes,batch", CASES)
def test_going_to_heads_and_back_returns_every_token(ranks, heads, tokens, planes, batch, padded):
    streams = global_streams(heads, tokens, planes, batch, "f4")
    own_heads = shares(heads, ranks, False)
    joint = np.concatenate(streams, axis=2)
    locals_ = [
        [take(stream, shares(stream.shape[2], ranks, padded)[rank], np.arange(heads)) for stream in streams]
        for rank in range(ranks)
    ]
    form = dict(tokens=tokens, heads=heads, padded=padded)
    sizes = dict(head_dim=HEAD_DIM, planes=planes, batch=batch)
    counts = [_native.side_counts(ranks, rank, **form, **sizes) for rank in range(ranks)]

    sends = [_native.pack_seq_to_head(locals_[rank], ranks, rank, **form) for rank in range(ranks)]
    received = all_to_all(sends, [sequence_side for sequence_side, _ in counts])
    gathered = [
        _native.unpack_seq_to_head(received[rank], ranks, rank, **form, **sizes) for rank in range(ranks)
    ]
    for rank in range(ranks):
        np.testing.assert_array_equal(gathered[rank], joint[:, :, :, own_heads[rank]])

    sends = [_native.pack_head_to_seq(gathered[rank], ranks, rank, **form) for rank in range(ranks)]
    received = all_to_all(sends, [head_side for _, head_side in counts])
    for rank in range(ranks):
        back = _native.unpack_head_to_seq(received[rank], ranks, rank, **form, **sizes)
        for mine, sent in zip(back, locals_[rank], strict=True):
            np.testing.assert_array_equal(mine, sent)


@pytest.mark.parametrize("dtype", ["i1", "u2", "f2", "f8", "i8"])
def test_elements_of_any_size_are_moved_unchanged(dtype):
    (stream,) = global_streams(4, (5,), 1, 1, dtype)
    send = _native.pack_seq_to_head([stream], 1, 0, [5], 4)
    assert send.dtype == stream.dtype
    np.testing.assert_array_equal(send, block([stream], [np.arange(5)], np.arange(4)))


def test_strided_inputs_are_read_as_numpy_shows_them():
    (stream,) = global_streams(4, (6,), 2, 1, "f4")
    strided = np.asfortranarray(stream)
    np.testing.assert_array_equal(
        _native.pack_seq_to_head([strided], 1, 0, [6], 4), _native.pack_seq_to_head([stream], 1, 0, [6], 4)
    )


def test_shares_follow_numpy_array_split():
    for total, ranks in itertools.product(range(20), range(1, 9)):
        actual = [_native.share(total, ranks, rank) for rank in range(ranks)]
        expected = np.array_split(np.arange(total), ranks)
        starts = np.cumsum([0] + [part.size for part in expected])
        assert actual == [(start, part.size) for start, part in zip(starts, expected, strict=False)]


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: _native.share(4, 2, 2), "rank 2 is not one of 2 ranks"),
        (lambda: _native.share(-1, 2, 0), "got -1"),
        (
            lambda: _native.pack_seq_to_head([np.zeros((1, 1, 3, 4, 2))], 2, 0, [5], 8),
            r"\[1, 1, 3, 4, 2\], expected \[1, 1, 3, 8, 2\]",
        ),
        (lambda: _native.pack_seq_to_head([np.zeros((3, 4, 2))], 1, 0, [3], 4), r"not \[3, 4, 2\]"),
        (lambda: _native.pack_seq_to_head([], 1, 0, [], 4), "no streams"),
        (lambda: _native.unpack_seq_to_head(np.zeros(7), 1, 0, [3], 4, 2), r"\[7\], expected \[24\]"),
        (lambda: _native.side_counts(2, 0, [1, 2, 3, 4, 5], 4, 2), "5 streams"),
        (lambda: _native.side_counts(2, 0, [-1], 4, 2), "token counts at least 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_values(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_collective_node_reached_by_ggml_ends_the_process_and_is_named():
    program = (
        "import ctypes\n"
        "from edgedit import _native\n"
        "callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)\n"
        "name = ctypes.create_string_buffer(b'block.3.qkv')\n"
        "callback(_native.collective_placeholder)(None, 0, 1, ctypes.addressof(name))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode < 0
    assert "collective node 'block.3.qkv'" in done.stderr


def test_other_threads_leave_a_collective_node_alone():
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    callback(_native.collective_placeholder)(None, 1, 2, None)


@pytest.mark.skipif(
    not Path("/proc/cpuinfo").exists() or platform.machine() != "x86_64", reason="needs x86-64 Linux"
)
def test_cpu_features_agree_with_the_kernel():
    words = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    features = _native.cpu_features()
    assert {"avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile"} <= set(features)
    assert features == {name: name in words for name in features}


def test_the_version_is_that_of_the_installed_package():
    from importlib.metadata import version

    assert _native.version == _native.build_info()["version"] == version("edgedit")
