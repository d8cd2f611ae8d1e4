"""linear, attention and conv2d by kernels: against numpy in double precision and against their twins of stock nodes."""

import math

import numpy as np
import pytest
from graph_runner import random, run_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_layers import TYPES, linear_layer, rounded

from edgedit import _native
from edgedit.graph.builder import GraphBuilder

FAMILIES = _native.kernels.families()
families = pytest.mark.parametrize("family", FAMILIES)
# Of a sum of products, relative to the sum of their absolute values: what is added in f32, in any order.
SUM = 4e-6
BF16 = 2.0**-8  # one rounding


def erf(x):
    return np.vectorize(math.erf)(x)


ACTIVATIONS = {
    None: lambda x: x,
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
}


def is_bf16(family, dtype):
    return dtype != "f32" and _native.kernels.has_bf16(family)


def multiplied(values, family, dtype):
    """What a family multiplies of values that meet weights of a type, in f64."""
    return rounded(values, "bf16") if is_bf16(family, dtype) else values.astype(np.float64)


def uses(b, op):
    assert [node.op for node in b.nodes].count(op) == 1, [node.op for node in b.nodes]


# linear


@families
@settings(max_examples=60)
@given(st.data())
def test_linear(family, data):
    dtype = data.draw(st.sampled_from(TYPES))
    batch, tokens, threads = (data.draw(st.integers(1, high)) for high in (3, 40, 3))
    columns = data.draw(st.integers(1, 200))
    inner = data.draw(st.integers(1, 6)) * 256 if dtype[0] == "q" else data.draw(st.integers(1, 700))
    activation = data.draw(st.sampled_from(list(ACTIVATIONS)))
    with_bias, with_gate, with_residual, with_bf16 = (data.draw(st.booleans()) for _ in range(4))
    cut = data.draw(st.sampled_from([0, inner // 2]))

    x, weight = random(batch, tokens, inner), random(columns, inner, seed=1) / np.float32(math.sqrt(inner))
    bias = random(columns, seed=2) if with_bias else None
    gates, residual = random(batch, 1, 2 * columns, seed=3), random(batch, tokens, columns, seed=4)
    layer, _store = linear_layer(weight, bias, dtype, family)

    def build(b, x, gates, residual):
        parts = [b.slice(x, 2, 0, cut), b.slice(x, 2, cut, inner)] if cut else x
        y = layer(
            b,
            parts,
            activation=activation,
            gate=b.split(gates, 2, axis=2)[1] if with_gate else None,
            residual=residual if with_residual else None,
            dtype="bf16" if with_bf16 else "f32",
        )
        uses(b, "linear")
        return b.cast(y, "f32")

    result = run_graph(build, x, gates, residual, threads=threads, kernels=family, compute_dtype=dtype)
    a, w = (
        multiplied(x.reshape(-1, inner), family, dtype),
        multiplied(rounded(weight, dtype).astype(np.float32), family, dtype),
    )
    product = a @ w.T + (0 if bias is None else bias)
    scale = np.abs(a) @ np.abs(w).T + 1
    expected = ACTIVATIONS[activation](product).reshape(result.shape)
    error = SUM * scale.reshape(result.shape)
    if with_gate:
        gate = gates[:, :, columns:].astype(np.float64)
        expected, error = expected * gate, error * np.abs(gate)
    if with_residual:
        expected = expected + residual
    if with_bf16:
        error = error + BF16 * np.abs(expected)
    np.testing.assert_array_less(np.abs(result - expected), error + 1e-6)


@families
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_do_not_depend_on_each_other(family, dtype):
    x, weight = random(1, 37, 512), random(130, 512, seed=1)
    layer, _store = linear_layer(weight, random(130, seed=2), dtype, family)

    def run(rows, threads=1):
        return run_graph(
            lambda b, x: layer(b, x, activation="gelu"),
            rows,
            threads=threads,
            kernels=family,
            compute_dtype=dtype,
        )

    whole = run(x)
    np.testing.assert_array_equal(run(x, threads=3), whole)
    np.testing.assert_array_equal(run(x[:, :1]), whole[:, :1])
    np.testing.assert_array_equal(run(x[:, 5:24].reshape(19, 1, 512)).reshape(19, 130), whole[0, 5:24])


@families
def test_linear_equals_its_twin(family):
    x, weight, bias = random(2, 9, 96), random(70, 96, seed=1), random(70, seed=2)
    gate, residual = random(2, 1, 70, seed=3), random(2, 9, 70, seed=4)

    def run(kernels):
        layer, _store = linear_layer(weight, bias, "f32", kernels)

        def build(b, x, gate, residual):
            return layer(b, x, activation="gelu", gate=gate, residual=residual)

        return run_graph(build, x, gate, residual, kernels=kernels)

    np.testing.assert_allclose(run(family), run("ggml"), atol=1e-5, rtol=1e-4)


@families
def test_linear_walks_strided_rows(family):
    x, weight = random(2, 6, 3, 48), random(20, 48, seed=1)
    layer, _store = linear_layer(weight, None, "f32", family)
    result = run_graph(lambda b, x: layer(b, b.slice(b.slice(x, 1, 1, 5), 2, 1, 2)), x, kernels=family)
    np.testing.assert_allclose(result, x[:, 1:5, 1:2] @ weight.T, atol=1e-5, rtol=1e-4)
    swapped = run_graph(lambda b, x: layer(b, b.permute(x, (0, 2, 1, 3))), x, kernels=family)
    np.testing.assert_allclose(swapped, x.transpose(0, 2, 1, 3) @ weight.T, atol=1e-5, rtol=1e-4)


@families
@pytest.mark.parametrize("dtype", [dtype for dtype in TYPES if dtype[0] == "q"])
def test_integers_stand_for_quantised_weights_where_asked_for(family, dtype):
    x, weight = random(1, 64, 1024), random(96, 1024, seed=1) / 32
    layer, _store = linear_layer(weight, None, dtype, family)

    def run(quantised_compute):
        return run_graph(
            lambda b, x: layer(b, x),
            x,
            kernels=family,
            compute_dtype=dtype,
            quantised_compute=quantised_compute,
        )

    exact, integers = run("exact"), run("int8")
    error = np.linalg.norm(integers - exact) / np.linalg.norm(exact)
    assert 1e-4 < error < 1.2e-2


def mlp_in_int8(family, x, *layers, dtype, threads=1):
    """What two layers make of x, the first of which gives what the second reads best; and that type."""
    types = []

    def build(b, x):
        first, second = layers
        types.append(second.input_type(b))
        hidden = first(b, x, activation="gelu", dtype=types[0])
        assert hidden.dtype == types[0]
        assert [node.op for node in b.nodes].count("cast") == 0
        return second(b, [x, hidden])

    choices = {"kernels": family, "compute_dtype": dtype, "quantised_compute": "int8"}
    return run_graph(build, x, threads=threads, **choices), types[0]


@families
@pytest.mark.parametrize("dtype", [dtype for dtype in TYPES if dtype[0] == "q"])
def test_results_are_quantised_for_a_layer_that_multiplies_integers(family, dtype):
    x, first, second = random(2, 9, 256), random(512, 256, seed=1) / 16, random(40, 768, seed=2) / 16
    bias = random(512, seed=3)
    first_layer, _first_store = linear_layer(first, bias, dtype, family)
    second_layer, _second_store = linear_layer(second, None, dtype, family)
    layers = first_layer, second_layer
    result, between = mlp_in_int8(family, x, *layers, dtype=dtype)
    assert between == "q8_0"
    hidden = ACTIVATIONS["gelu"](x @ rounded(first, dtype).T + bias)
    expected = np.concatenate([x, hidden], -1) @ rounded(second, dtype).T
    assert 1e-4 < np.linalg.norm(result - expected) / np.linalg.norm(expected) < 1.2e-2
    np.testing.assert_array_equal(mlp_in_int8(family, x, *layers, dtype=dtype, threads=3)[0], result)
    np.testing.assert_array_equal(mlp_in_int8(family, x[:, 4:5], *layers, dtype=dtype)[0], result[:, 4:5])


@families
def test_results_are_not_quantised_for_other_layers(family):
    x, first, second = random(1, 3, 64), random(96, 64, seed=1), random(8, 160, seed=2)
    first, _first_store = linear_layer(first, None, "q8_0", family)
    for dtype in ("f32", "bf16"):
        layer, _store = linear_layer(second, None, dtype, family)
        _, between = mlp_in_int8(family, x, first, layer, dtype=dtype)
        assert between == ("bf16" if is_bf16(family, dtype) else "f32")
    adapted, _store = linear_layer(second, None, "q8_0", family)
    adapted.adapt(4)
    assert adapted.input_type(GraphBuilder(kernels=family, quantised_compute="int8")) == "f32"
    assert adapted.input_type(GraphBuilder(kernels="ggml", quantised_compute="int8")) == "f32"


@pytest.mark.parametrize("kernels", [*FAMILIES, "ggml"])
@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
@pytest.mark.parametrize("sides", [0, 1, 2])
@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (1, 0, 2, 3)], ids=str)
def test_any_layer_reads_quantised_results(kernels, dtype, sides, axes):
    """By way of f32 where it multiplies no integers, has more than two inputs, or cannot walk the rows."""
    x, weight = random(2, 3, 5, 64), random(7, 64 + 32 * sides, seed=1)
    beside = [random(2, 3, 5, 32, seed=2 + side) for side in range(sides)]
    layer, _store = linear_layer(weight, None, dtype, kernels)

    def build(b, x, *beside):
        return layer(b, [b.permute(part, axes) for part in (*beside, b.cast(x, "q8_0"))])

    result = run_graph(build, x, *beside, kernels=kernels, quantised_compute="int8")
    expected = np.concatenate([*beside, x], -1).transpose(axes) @ rounded(weight, dtype).T
    assert 1e-4 < np.linalg.norm(result - expected) / np.linalg.norm(expected) < 1.2e-2


@pytest.mark.parametrize("kernels", [*FAMILIES, "ggml"])
def test_results_that_blocks_do_not_fill_are_refused(kernels):
    layer, _store = linear_layer(random(33, 64), None, "f32", kernels)
    with pytest.raises(ValueError, match="blocks of q8_0 do not fill the rows"):
        run_graph(lambda b, x: layer(b, x, dtype="q8_0"), random(2, 64), kernels=kernels)


@families
def test_three_inputs_side_by_side(family):
    x, weight = random(1, 5, 60), random(17, 60, seed=1)
    layer, _store = linear_layer(weight, None, "f32", family)
    result = run_graph(lambda b, x: layer(b, b.split(b.scale(x, 1.0), 3, axis=2)), x, kernels=family)
    np.testing.assert_allclose(result, x @ weight.T, atol=1e-5, rtol=1e-4)


# attention


def attend(q, k, v, scale, mask):
    """[B, S, H, D] in f64; rows without a key are 0."""
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * scale + mask
    highest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
    total = weights.sum(-1, keepdims=True)
    out = weights @ v / np.where(total, total, 1)
    return out.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)


@families
@settings(max_examples=60)
@given(st.data())
def test_attention(family, data):
    batch, heads, threads = (data.draw(st.integers(1, 3)) for _ in range(3))
    queries, keys = (data.draw(st.integers(1, 150)) for _ in range(2))
    head_dim = data.draw(st.sampled_from([1, 4, 16, 33, 64, 128, 512]))
    dtype = data.draw(st.sampled_from(["f32", "bf16"]))
    form = data.draw(st.sampled_from(["none", "qk", "1k", "hqk", "bhqk", "b11k"]))
    mask_type = data.draw(st.sampled_from([np.float16, np.float32]))
    head_major = data.draw(st.booleans())

    shapes = [(batch, tokens, heads, head_dim) for tokens in (queries, keys, keys)]
    q, k, v = (random(*shape, seed=seed) for seed, shape in enumerate(shapes))
    sizes = {"q": queries, "k": keys, "h": heads, "b": batch, "1": 1}
    mask = 0.0
    if form != "none":
        mask = random(*(sizes[letter] for letter in form), seed=4).astype(mask_type)
        mask[random(*mask.shape, seed=5) > 1] = -np.inf
    scale = 0.7 / math.sqrt(head_dim)

    def build(b, *planes):
        if head_major:
            planes = [b.permute(x, (0, 2, 1, 3)) for x in planes]
        values = b.constant("mask", mask) if form != "none" else None
        out = b.attention(*planes, scale=scale, mask=values, dtype=b.activations)
        uses(b, "attention")
        return b.cast(out, "f32")

    planes = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) if head_major else x for x in (q, k, v)]
    result = run_graph(build, *planes, threads=threads, kernels=family, compute_dtype=dtype)
    expected = attend(q, k, v, scale, np.asarray(mask, np.float64))
    tolerance = 0.03 if is_bf16(family, dtype) else 3e-6
    np.testing.assert_allclose(result, expected, atol=tolerance)


@families
def test_attention_equals_its_twin(family):
    q, k, v = (random(2, 70, 3, 64, seed=seed) for seed in range(3))
    bias = random(3, 70, 70, seed=3)

    def run(kernels):
        return run_graph(
            lambda b, *x: b.attention(*x[:3], scale=0.5, mask=x[3]), q, k, v, bias, kernels=kernels
        )

    np.testing.assert_allclose(run(family), run("ggml"), atol=1e-5, rtol=1e-4)


@families
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_queries_do_not_depend_on_each_other(family, dtype):
    q, k, v = (random(2, 70, 3, 64, seed=seed) for seed in range(3))

    def run(q, k, v, threads=1):
        return run_graph(
            lambda b, *x: b.attention(*x), q, k, v, threads=threads, kernels=family, compute_dtype=dtype
        )

    whole = run(q, k, v)
    np.testing.assert_array_equal(run(q, k, v, threads=3), whole)
    np.testing.assert_array_equal(run(q[:, 13:40], k, v), whole[:, 13:40])
    heads = [np.ascontiguousarray(x[1:, :, 1:2]) for x in (q, k, v)]
    np.testing.assert_array_equal(run(*heads), whole[1:, :, 64:128])


# convolution


def convolve(x, weight, stride, sides):
    above, below, left, right = sides
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (above, below), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(2, 3))
    return np.einsum("bchwij,ocij->bohw", windows[:, :, ::stride, ::stride], weight.astype(np.float64))


@families
@settings(max_examples=40)
@given(st.data())
def test_conv2d(family, data):
    batch, threads = (data.draw(st.integers(1, 2)) for _ in range(2))
    channels, filters = (data.draw(st.integers(1, 40)) for _ in range(2))
    height, width = (data.draw(st.integers(3, 24)) for _ in range(2))
    kernel, stride = data.draw(st.sampled_from([1, 2, 3])), data.draw(st.integers(1, 2))
    sides = tuple(data.draw(st.integers(0, 2)) for _ in range(4))
    activation = data.draw(st.sampled_from(list(ACTIVATIONS)))
    with_bias, with_residual, is_view = (data.draw(st.booleans()) for _ in range(3))

    x, weight = random(batch, channels + 1, height, width), random(filters, channels, kernel, kernel, seed=1)
    bias = random(filters, seed=2)
    if not is_view:
        x = np.ascontiguousarray(x[:, 1:])
    expected = convolve(x[:, -channels:], weight, stride, sides) + (bias[:, None, None] if with_bias else 0)
    residual = random(*expected.shape, seed=3)

    def build(b, x, residual):
        x = b.slice(x, 1, 1, channels + 1) if is_view else x
        leaves = b.constant("weight", weight), b.constant("bias", bias) if with_bias else None
        follow = {"activation": activation, "residual": residual if with_residual else None}
        y = b.conv2d(x, *leaves, stride, sides, **follow)
        uses(b, "conv2d")
        return y

    result = run_graph(build, x, residual, threads=threads, kernels=family)
    expected = ACTIVATIONS[activation](expected) + (residual if with_residual else 0)
    np.testing.assert_allclose(result, expected, atol=2e-6 * channels * kernel**2 + 5e-6, rtol=1e-5)
