// Activations of vectors, each within a few ulp of its formula wherever the result is not negligible.
#pragma once

#include "kernels/impl/math.hpp"

namespace edgedit::kernels {
namespace {

/// 1 / (1 + e^-x), 0 from -86 down: the exponential stays finite, as `reciprocal` wants it.
EDGEDIT_SIMD Floats sigmoid(Floats x) {
    const Floats lowest = broadcast(-86.0f), power = exp(zeros() - max(lowest, x));
    return select(less(x, lowest), zeros(), reciprocal(broadcast(1.0f) + power));
}

template <Activation kind> EDGEDIT_SIMD Floats activate(Floats x) {
    if constexpr (kind == Activation::gelu_tanh) {
        // (1 + tanh(y)) / 2 = sigmoid(2 y), without the cancellation at its left end
        const Floats inner = fma(x * x, broadcast(0.0713548162726f), broadcast(1.5957691216057308f));
        return x * sigmoid(x * inner);
    } else if constexpr (kind == Activation::gelu_erf) {
        return x * normal_cdf(x);
    } else if constexpr (kind == Activation::gelu_quick) {
        return x * sigmoid(x * broadcast(1.702f));
    } else if constexpr (kind == Activation::silu) {
        return x * sigmoid(x);
    } else if constexpr (kind == Activation::relu) {
        return max(zeros(), x);
    } else {
        return x;
    }
}

} // namespace
} // namespace edgedit::kernels
