// Activations in int8: blocks of 32 with a scale each.
#pragma once

#include "kernels/impl/elements.hpp"
#include "kernels/impl/quant_blocks.hpp"
#include "kernels/impl/quant_lanes.hpp"

namespace edgedit::kernels {
namespace {

/// 32 activations: x = scale * (value - P::kBias), as near as that comes.
template <typename P> struct ActivationBlock {
    float scale;
    float sum; ///< of the 32 as they are here: scale * sum of (value - P::kBias)
    typename P::Activation values[kShortBlock];
};

/// Scale to [-127, 127], and round to the nearest integer, ties to even. A block without anything as large as 1e-36 is
/// zeros. A block with an infinity or a NaN makes all sums over it NaN.
template <typename P> EDGEDIT_SIMD void quantise_block(const float* x, ActivationBlock<P>& block) {
    constexpr int kVectors = kShortBlock / kLanes;
    Floats parts[kVectors], largest = zeros(), nothing = zeros(), sums = zeros();
    EDGEDIT_UNROLL
    for (int i = 0; i < kVectors; ++i) {
        parts[i] = load(x + i * kLanes);
        largest = max(largest, abs(parts[i]));
        nothing = fma(parts[i], zeros(), nothing); // unless it is not finite
    }
    const float size = reduce_max(largest);
    const Floats factor = broadcast(size < 1e-36f ? 0.0f : 127.0f / size);
    EDGEDIT_UNROLL
    for (int i = 0; i < kVectors; ++i) {
        const Floats rounded = round(parts[i] * factor);
        sums = sums + rounded;
        store_ints(block.values + i * kLanes, to_ints(rounded) + P::kBias);
    }
    block.scale = size / 127.0f + reduce_add(nothing);
    block.sum = block.scale * reduce_add(sums);
}

} // namespace
} // namespace edgedit::kernels
