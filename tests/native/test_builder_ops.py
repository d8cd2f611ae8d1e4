"""Every operation of the builder against numpy, and its refusals."""

import math

import numpy as np
import pytest
from graph_runner import random, run_graph

from edgedit.errors import GgmlError
from edgedit.graph.builder import GraphBuilder

TOLERANCE = {"atol": 1e-5, "rtol": 1e-4}  # f32


def close(result, expected):
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, **TOLERANCE)


# elementwise


@pytest.mark.parametrize(
    "op, oracle", [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide)]
)
@pytest.mark.parametrize("shape, other", [((2, 3, 4), (2, 3, 4)), ((2, 3, 4), (2, 1, 4)), ((5, 4), (4,))])
def test_arithmetic_broadcasts_like_numpy(op, oracle, shape, other):
    x, y = random(*shape), random(*other, seed=1) + 3
    close(run_graph(lambda b, x, y: getattr(b, op)(x, y), x, y), oracle(x, y))


def erf(x):
    return np.vectorize(math.erf)(x)


@pytest.mark.parametrize(
    "op, oracle",
    [
        ("silu", lambda x: x / (1 + np.exp(-x))),
        ("gelu", lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("gelu_erf", lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))),
        ("gelu_quick", lambda x: x / (1 + np.exp(-1.702 * x))),
        ("relu", lambda x: np.maximum(x, 0)),
        ("tanh", np.tanh),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    ],
)
def test_activations(op, oracle):
    x = np.concatenate([np.linspace(-12, 12, 1001), [-40, 40]]).astype(np.float32)
    close(run_graph(lambda b, x: getattr(b, op)(x), x), oracle(x.astype(np.float64)).astype(np.float32))


def test_scale_takes_a_strided_view():
    x = random(3, 8)
    close(run_graph(lambda b, x: b.scale(b.slice(x, 1, 2, 5), 2.0, 1.0), x), x[:, 2:5] * 2 + 1)


def test_scale_takes_one_row_out_of_many():
    """Contiguous for ggml, since axes of length one do not count, and yet not packed."""
    x = random(3, 4, 8)
    close(run_graph(lambda b, x: b.scale(b.slice(b.slice(x, 0, 1, 2), 1, 2, 3), 2.0), x), x[1:2, 2:3] * 2)


# layout


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3), (1, 3, 0, 2)])
def test_permute_is_transpose(axes):
    x = random(2, 3, 4, 5)
    np.testing.assert_array_equal(run_graph(lambda b, x: b.permute(x, axes), x), x.transpose(axes))


def test_slice_concat_reshape_pad_repeat():
    x = random(2, 6, 4)

    def build(b, x):
        ends = b.concat([b.slice(x, 1, 4, 6), b.slice(x, -2, 0, 1)], 1)  # [2, 3, 4]
        return b.repeat(b.pad(b.reshape(ends, (2, -1)), (0, 1), (1, 2)), (3, 30))

    ends = np.concatenate([x[:, 4:], x[:, :1]], 1).reshape(2, -1)
    expected = np.tile(np.pad(ends, ((0, 1), (1, 2))), (1, 2))
    np.testing.assert_array_equal(run_graph(build, x), expected)


def test_concat_of_neighbouring_slices_is_a_slice():
    x = random(2, 6, 4)

    def build(b, x):
        joined = b.concat([b.slice(x, 1, 1, 3), b.slice(x, 1, 3, 3), b.slice(x, 1, 3, 6)], 1)
        assert {node.op for node in b.nodes} == {"view"}
        return joined

    np.testing.assert_array_equal(run_graph(build, x), x[:, 1:])


@pytest.mark.parametrize(
    "parts",
    [
        lambda b, x, y: [b.slice(x, 1, 3, 6), b.slice(x, 1, 0, 3)],  # in the other order
        lambda b, x, y: [b.slice(x, 1, 0, 3), b.slice(x, 1, 2, 6)],  # overlapping
        lambda b, x, y: [b.slice(x, 1, 0, 3), b.slice(y, 1, 3, 6)],  # of two tensors
        lambda b, x, y: [b.slice(x, 1, 0, 3), b.slice(b.scale(x, 2.0), 1, 3, 6)],
    ],
)
def test_concat_of_other_slices_copies(parts):
    arrays = random(2, 6, 4), random(2, 6, 4, seed=1)

    def build(b, x, y):
        pieces = parts(b, x, y)
        joined = b.concat(pieces, 1)
        assert b.nodes[-1].op == "concat"
        return b.concat([joined, *pieces], 1)

    result = run_graph(build, *arrays)
    np.testing.assert_array_equal(*np.split(result, 2, axis=1))


def test_concat_after_a_write_sees_what_was_written():
    x, y = random(2, 3), random(1, 3, seed=1)

    def build(b, x, y):
        before = b.write(b.empty((2, 3)), x, (3, 1), 0)
        first = b.slice(before, 0, 0, 1)
        after = b.write(before, y, (3, 1), 3)
        return b.concat([b.slice(after, 0, 0, 1), b.slice(after, 0, 1, 2), first], 0)

    np.testing.assert_array_equal(run_graph(build, x, y), np.concatenate([x[:1], y, x[:1]]))


@pytest.mark.parametrize("dtype, unit", [("f16", 2.0**-11), ("bf16", 2.0**-8)])
def test_cast_there_and_back_rounds_once(dtype, unit):
    x = random(3, 5)
    result = run_graph(lambda b, x: b.cast(b.cast(x, dtype), "f32"), x)
    assert 0 < np.abs(result - x).max() <= unit * np.abs(x).max()


def test_write_puts_blocks_where_the_strides_say():
    x, y = random(2, 3), random(2, 3, seed=1)

    def build(b, x, y):
        target = b.write(b.empty((4, 3)), x, (6, 1), 0)  # even rows
        return b.write(target, y, (6, 1), 3)  # odd rows

    expected = np.stack([x, y], 1).reshape(4, 3)
    np.testing.assert_array_equal(run_graph(build, x, y), expected)


# products and norms


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_linear(rows):
    x, w, bias = random(2, rows, 24), random(7, 24, seed=1), random(7, seed=2)
    close(run_graph(lambda b, x, w, c: b.linear(x, w, c), x, w, bias), x @ w.T + bias)


ACTIVATIONS = {
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    None: lambda x: x,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("with_gate, with_residual", [(True, True), (True, False), (False, True)])
def test_linear_with_all_that_may_follow(activation, with_gate, with_residual):
    x, w, bias = random(2, 5, 24), random(7, 24, seed=1), random(7, seed=2)
    gate, residual = random(2, 1, 7, seed=3), random(2, 5, 7, seed=4)

    def build(b, x, w, bias, gate, residual):
        follow = {"gate": gate if with_gate else None, "residual": residual if with_residual else None}
        return b.linear(x, w, bias, activation=activation, **follow)

    expected = ACTIVATIONS[activation]((x @ w.T + bias).astype(np.float64))
    expected = expected * gate if with_gate else expected
    expected = expected + residual if with_residual else expected
    close(run_graph(build, x, w, bias, gate, residual), expected.astype(np.float32))


def test_linear_of_inputs_side_by_side():
    x, y, w = random(2, 5, 8), random(2, 5, 16, seed=1), random(7, 24, seed=2)
    expected = np.concatenate([x, y], -1) @ w.T
    close(run_graph(lambda b, x, y, w: b.linear((x, y), w), x, y, w), expected)


def test_linear_takes_and_gives_bf16():
    x, w = random(2, 5, 24), random(7, 24, seed=1)
    built = []

    def build(b, x, w):
        y = b.linear(b.cast(x, "bf16"), w, dtype="bf16")
        built.append(y.dtype)
        return b.cast(y, "f32")

    result = run_graph(build, x, w)
    assert built == ["bf16"]
    np.testing.assert_allclose(result, x @ w.T, atol=0.1)


def test_matmul_shares_leading_axes():
    x, y = random(2, 4, 5, 8), random(2, 4, 6, 8, seed=1)
    close(run_graph(lambda b, x, y: b.matmul(x, y), x, y), x @ y.transpose(0, 1, 3, 2))


def test_embedding():
    table, ids = random(9, 4), np.array([[3, 0], [8, 3]], np.int32)
    np.testing.assert_array_equal(run_graph(lambda b, t, i: b.embedding(t, i), table, ids), table[ids])


def test_norms():
    x, w, c = random(2, 6, 4, 4), random(4, seed=1), random(4, seed=2)
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    layer = (x - mean) / np.sqrt(var + 1e-6) * w + c
    close(run_graph(lambda b, x, w, c: b.layer_norm(x, 1e-6, w, c), x, w, c), layer)
    rms = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * w
    close(run_graph(lambda b, x, w: b.rms_norm(x, 1e-6, w), x, w), rms)
    g, h = random(6, seed=3), random(6, seed=4)
    grouped = x.reshape(2, 3, -1)
    grouped = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + 1e-6)
    expected = grouped.reshape(x.shape) * g[:, None, None] + h[:, None, None]
    close(run_graph(lambda b, x, g, h: b.group_norm(x, 3, 1e-6, g, h), x, g, h), expected)


# attention


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v, mask=0.0):
    """[B, S, H, D] in double precision."""
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    out = softmax(q @ k.transpose(0, 1, 3, 2) / math.sqrt(q.shape[-1]) + mask) @ v
    return out.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1).astype(np.float32)


@pytest.mark.parametrize("queries, keys", [(1, 1), (7, 13), (70, 130)])
@pytest.mark.parametrize("head_dim", [16, 20, 64])
def test_attention(queries, keys, head_dim):
    q, k, v = random(2, queries, 3, head_dim), *(random(2, keys, 3, head_dim, seed=s) for s in (1, 2))
    close(run_graph(lambda b, *x: b.attention(*x), q, k, v), attention(q, k, v))


def test_attention_with_mask():
    q, k, v = (random(1, 6, 2, 16, seed=s) for s in range(3))
    mask = np.where(np.tri(6), 0, -np.inf).astype(np.float16)
    result = run_graph(lambda b, *x: b.attention(*x, mask=b.constant("mask", mask)), q, k, v)
    close(result, attention(q, k, v, mask))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    "shape", [(6, 5), (1, 5), (3, 6, 5), (1, 6, 5), (2, 3, 6, 5), (2, 1, 1, 5), (1, 3, 6, 5)]
)
def test_attention_with_a_mask_of_any_shape(dtype, shape):
    q, k, v = random(2, 6, 3, 8), random(2, 5, 3, 8, seed=1), random(2, 5, 3, 8, seed=2)
    mask = random(*shape, seed=3).astype(dtype)
    mask[..., 1] = -np.inf
    result = run_graph(lambda b, *x: b.attention(*x, mask=b.constant("mask", mask)), q, k, v)
    close(result, attention(q, k, v, mask.astype(np.float64)))


def test_attention_in_bf16():
    q, k, v = (random(1, 6, 2, 16, seed=s) for s in range(3))

    def build(b, *planes):
        out = b.attention(*(b.cast(x, "bf16") for x in planes), dtype="bf16")
        assert out.dtype == "bf16"
        return b.cast(out, "f32")

    np.testing.assert_allclose(run_graph(build, q, k, v), attention(q, k, v), atol=0.03)


def test_softmax_with_mask_per_head():
    x, mask = random(2, 3, 4, 5), random(3, 4, 5, seed=1)
    close(run_graph(lambda b, x, m: b.softmax(x, 0.5, m), x, mask), softmax(x * 0.5 + mask))


def test_rope_turns_neighbouring_pairs():
    x = random(2, 5, 3, 8)
    positions = np.array([0, 3, 70, 1, 9], np.int32)
    periods = (10000.0 ** (np.arange(0, 8, 2) / 8)).astype(np.float32)
    angle = positions[:, None, None] / periods.astype(np.float64)
    even, odd = x[..., 0::2], x[..., 1::2]
    expected = np.empty_like(x)
    expected[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    expected[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    close(run_graph(lambda b, x, p, w: b.rope(x, p, w), x, positions, periods), expected)


# images


def conv2d(x, w, stride, padding):
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("bchwij,ocij->bohw", windows, w)


@pytest.mark.parametrize("kernel, stride, padding", [(3, 1, 1), (1, 1, 0), (3, 2, 0)])
@pytest.mark.parametrize("direct", [False, True])
def test_conv2d_both_ways(monkeypatch, kernel, stride, padding, direct):
    if direct:
        monkeypatch.setattr("edgedit.graph.ops.image.MAX_IM2COL_NBYTES", 0)
    x, w, bias = random(2, 3, 7, 9), random(4, 3, kernel, kernel, seed=1), random(4, seed=2)
    result = run_graph(lambda b, x, w, c: b.conv2d(x, w, c, stride, padding), x, w, bias)
    close(result, conv2d(x, w, stride, padding) + bias[:, None, None])


def test_conv2d_with_activation_and_residual():
    x, w, bias, residual = (
        random(1, 3, 5, 6),
        random(4, 3, 3, 3, seed=1),
        random(4, seed=2),
        random(1, 4, 5, 6),
    )

    def build(b, x, w, c, r):
        return b.conv2d(x, w, c, activation="silu", residual=r)

    expected = ACTIVATIONS["silu"](conv2d(x, w, 1, 1) + bias[:, None, None]) + residual
    close(run_graph(build, x, w, bias, residual), expected)


def test_upsample_repeats_pixels():
    x = random(1, 2, 3, 4)
    np.testing.assert_array_equal(
        run_graph(lambda b, x: b.upsample_nearest(x, 2), x), x.repeat(2, axis=2).repeat(2, axis=3)
    )


# refusals: ggml would abort the process


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda b, x: b.add(x, b.input("y", (2, 4))), r"add: .*broadcast.*\[2, 3\].*\[2, 4\]"),
        (lambda b, x: b.linear(x, b.input("w", (5, 4))), r"linear: inner sizes differ.*\[2, 3\].*\[5, 4\]"),
        (lambda b, x: b.linear((x, b.input("y", (3, 3))), x), "linear: inputs side by side must agree"),
        (lambda b, x: b.linear(x, x, activation="tanh"), "activation 'tanh' is none of gelu, gelu_erf"),
        (lambda b, x: b.linear(x, x, residual=x), r"linear: the residual must be \[2, 2\]"),
        (lambda b, x: b.linear(x, x, gate=x), "linear: .*must broadcast"),
        (lambda b, x: b.reshape(x, (4, 2)), r"reshape: 6 elements do not fit \[4, 2\]"),
        (lambda b, x: b.reshape(b.permute(x, (1, 0)), (6,)), "reshape: a strided view"),
        (lambda b, x: b.slice(x, 1, 2, 4), r"slice: \[2:4\] is outside axis 1"),
        (lambda b, x: b.concat([x, b.input("y", (3, 3))], 1), "concat: shapes must agree except on axis 1"),
        (lambda b, x: b.attention(x, x, x), "attention: .*4 dimensions"),
        (
            lambda b, x: b.attention(*[b.input(n, (1, 2, 0, 4)) for n in "qkv"]),
            "attention: 0 tokens or heads",
        ),
        (
            lambda b, x: b.attention(*[b.input(n, (1, 2, 3, 4)) for n in "qkv"], mask=b.input("m", (2, 3))),
            r"attention: the mask must be \[Sq, Sk\], \[H, Sq, Sk\] or \[B, H, Sq, Sk\]",
        ),
        (lambda b, x: b.silu(b.cast(x, "f16")), "silu: .*must be f32"),
        (lambda b, x: b.input("x", (1,)), "already has an input 'x'"),
        (lambda b, x: b.output("y", x), "is a leaf"),
        (lambda b, x: b.input("y", (1, 2, 3, 4, 5)), "at most 4 dimensions"),
    ],
)
def test_wrong_shapes_are_refused_by_name(build, words):
    b = GraphBuilder("test")
    with pytest.raises(ValueError, match=words):
        build(b, b.input("x", (2, 3)))


def test_a_graph_may_outgrow_its_ggml_context(monkeypatch):
    monkeypatch.setattr("edgedit.graph.recorder.CONTEXT_TENSORS", 80)

    def build(b, x):
        for _ in range(500):
            x = b.scale(x, 1.0, 1.0)
        assert len(b._contexts) > 10
        return x

    np.testing.assert_array_equal(run_graph(build, np.zeros(3, np.float32)), np.full(3, 500))


def test_too_many_leaves_are_refused(monkeypatch):
    monkeypatch.setattr("edgedit.graph.recorder.MAX_LEAVES", 2)
    b = GraphBuilder("small")
    b.input("x", (1,)), b.input("y", (1,))
    with pytest.raises(GgmlError, match="'small' has 2 inputs and constants"):
        b.input("z", (1,))


def test_names_carry_their_scopes():
    b = GraphBuilder("test")
    with b.scope("block"), b.scope("attn"):
        assert b.silu(b.input("x", (1,))).name == "block.attn.silu"
