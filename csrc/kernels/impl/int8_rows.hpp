// Activations in int8: blocks of 32 with a scale each.
#pragma once

#include "kernels/impl/elements.hpp"
#include "kernels/impl/quant_blocks.hpp"

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
    Floats integers[kVectors], largest = zeros(), sums = zeros();
    EDGEDIT_UNROLL
    for (int i = 0; i < kVectors; ++i) largest = max(largest, abs(load(x + i * kLanes)));
    const float size = reduce_max(largest);
    const Floats factor = broadcast(size < 1e-36f ? 0.0f : 127.0f / size);
    EDGEDIT_UNROLL
    for (int i = 0; i < kVectors; ++i) {
        integers[i] = round(load(x + i * kLanes) * factor);
        sums = sums + integers[i];
    }
    P::store_activations(integers, block.values);
    const float sum = reduce_add(sums); // NaN, too, if there is an infinity: the factor is 0 then
    block.scale = size / 127.0f + 0.0f * sum;
    block.sum = block.scale * sum;
}

/// Integers and scale of a block that is quantised already.
template <typename P> EDGEDIT_SIMD void take_block(const BlockQ8_0& quantised, ActivationBlock<P>& block) {
    constexpr int kVectors = kShortBlock / kLanes;
    alignas(64) float values[kShortBlock];
    for (Index i = 0; i < kShortBlock; ++i) values[i] = quantised.quants[i];
    Floats integers[kVectors], sums = zeros();
    EDGEDIT_UNROLL
    for (int i = 0; i < kVectors; ++i) {
        integers[i] = load(values + i * kLanes);
        sums = sums + integers[i];
    }
    P::store_activations(integers, block.values);
    block.scale = widen(quantised.scale);
    block.sum = block.scale * reduce_add(sums);
}

} // namespace
} // namespace edgedit::kernels
