// Elementary functions of vectors in f32.
#pragma once

#include "kernels/impl/elements.hpp"

namespace edgedit::kernels {
namespace {

/// 2^n p for an integer n >= -126 and a p near 1: infinity where it overflows, 0 for n = -126.
EDGEDIT_SIMD Floats scale(Floats p, Floats n) { return (p + p) * power_of_two(n - broadcast(1.0f)); }

/// e^x within 2 ulp: infinity from 88.73 on, 0 from -87 down (where the result is below 2^-125), NaN for NaN.
EDGEDIT_SIMD Floats exp(Floats x) {
    x = max(broadcast(-87.6f), min(broadcast(89.0f), x));
    const Floats n = round(x * broadcast(1.44269504f));
    Floats r = fnma(n, broadcast(0.693359375f), x); // ln 2 in two parts [Cody and Waite 1980]
    r = fnma(n, broadcast(-2.12194440e-4f), r);
    Floats p = broadcast(0.0013814610429108143f); // minimax on [-ln 2 / 2, ln 2 / 2]: 3e-9
    p = fma(p, r, broadcast(0.008368710055947304f));
    p = fma(p, r, broadcast(0.04166838899254799f));
    p = fma(p, r, broadcast(0.1666652113199234f));
    p = fma(p, r, broadcast(0.4999999403953552f));
    p = fma(p, r * r, r);
    return scale(p + broadcast(1.0f), n);
}

/// 2^x within 2 ulp: infinity from 128 on, 0 from -125.5 down, NaN for NaN.
EDGEDIT_SIMD Floats exp2(Floats x) {
    x = max(broadcast(-126.4f), min(broadcast(129.0f), x));
    const Floats n = round(x), f = x - n;
    Floats p = broadcast(0.00015353360504377633f); // minimax on [-1/2, 1/2]: 2e-9
    p = fma(p, f, broadcast(0.0013398875016719103f));
    p = fma(p, f, broadcast(0.00961843691766262f));
    p = fma(p, f, broadcast(0.055503323674201965f));
    p = fma(p, f, broadcast(0.24022647738456726f));
    p = fma(p, f, broadcast(0.6931471824645996f));
    return scale(fma(p, f, broadcast(1.0f)), n);
}

/// (1 + erf(x / sqrt(2))) / 2 within a few ulp where it is above 1e-3, 0 from -13.2 down.
EDGEDIT_SIMD Floats normal_cdf(Floats x) {
    const Floats z = min(broadcast(14.0f), abs(x)), t = broadcast(1.0f) / fma(z, broadcast(0.25f), broadcast(1.0f));
    // the upper tail is e^(-z^2 / 2) times a smooth function of t, minimax on [0, 13.2]: 2e-8
    Floats p = broadcast(0.03479975089430809f);
    p = fma(p, t, broadcast(-0.20079255104064941f));
    p = fma(p, t, broadcast(0.40582793951034546f));
    p = fma(p, t, broadcast(-0.3478994369506836f));
    p = fma(p, t, broadcast(0.31651169061660767f));
    p = fma(p, t, broadcast(-0.026871656998991966f));
    p = fma(p, t, broadcast(0.12383127957582474f));
    p = fma(p, t, broadcast(0.094328373670578f));
    p = fma(p, t, broadcast(0.10028938204050064f));
    p = fma(p, t, broadcast(-2.4789835151750594e-05f));
    const Floats tail = p * exp(z * z * broadcast(-0.5f));
    return select(less(x, zeros()), tail, broadcast(1.0f) - tail);
}

} // namespace
} // namespace edgedit::kernels
