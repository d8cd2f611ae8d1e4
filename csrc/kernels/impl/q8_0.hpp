// Results as ggml's q8_0: what layers that multiply in int8 read without quantising, in about a quarter of the memory of
// f32. Plain loops, which compilers vectorise.
#pragma once

#include "kernels/impl/quant_blocks.hpp"

namespace edgedit::kernels {
namespace {

/// 32 floats as multiples of their largest size / 127, which is rounded to f16: the nearest, ties to even. A block with
/// an infinity or a NaN has a scale that is not a number, and one that is too large for f16 an infinite one.
inline void quantise_to_q8_0(const float* x, BlockQ8_0& block) {
    constexpr int kCount = BlockQ8_0::kElements, kSums = 8;
    constexpr float kMagic = 12582912.0f; // 1.5 * 2^23: the sum's low byte is the nearest integer, in two's complement
    float sizes[kSums] = {}, sums[kSums] = {}, integers[kCount];
    for (int i = 0; i < kCount; i += kSums)
        for (int lane = 0; lane < kSums; ++lane) {
            const float size = float_of(bits_of(x[i + lane]) & 0x7fffffffu);
            sizes[lane] = size > sizes[lane] ? size : sizes[lane];
        }
    float largest = 0, sum = 0;
    for (const float size : sizes) largest = size > largest ? size : largest;
    edgedit::narrow(largest / 127.0f, block.scale);
    const float scale = widen(block.scale), factor = scale == 0 ? 0.0f : 1.0f / scale;
    for (int i = 0; i < kCount; i += kSums)
        for (int lane = 0; lane < kSums; ++lane) {
            const float exact = x[i + lane] * factor;
            // Beyond 127 only where the scale has been rounded down: by much only where f16 has few digits left.
            const float above = exact > -127.0f ? exact : -127.0f, within = above < 127.0f ? above : 127.0f;
            integers[i + lane] = within + kMagic;
            sums[lane] += exact;
        }
    for (int i = 0; i < kCount; ++i) block.quants[i] = static_cast<std::int8_t>(bits_of(integers[i]));
    for (const float part : sums) sum += part;
    if (sum != sum) edgedit::narrow(sum, block.scale);
}

} // namespace
} // namespace edgedit::kernels
