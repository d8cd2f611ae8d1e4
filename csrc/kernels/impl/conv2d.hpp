// Convolution of [B, C, H, W] images without a matrix of patches in memory: pixels are the columns of panels, which are
// gathered from the image a block of the sum at a time, and the rows are output channels, whose weights are read where
// they stand.
#pragma once

#include "kernels/impl/activation.hpp"
#include "kernels/impl/conv2d_pixels.hpp"
#include "kernels/impl/multiply_panels.hpp"
#include "kernels/impl/split.hpp"
#include "kernels/scratch.hpp"

namespace edgedit::kernels {
namespace {

/// `count` pixels of one channel from their sums; `at` is the first one's place in `out` and `residual`.
template <Activation kind>
void finish_pixels(const Conv2dProblem& p, Index channel, Index at, Index count, const float* sums) {
    const Floats bias = broadcast(p.bias != nullptr ? p.bias[channel] : 0.0f);
    for (Index i = 0; i < count; i += kLanes) {
        const Index left = count - i;
        Floats values = activate<kind>(load(sums + i) + bias);
        if (p.residual != nullptr) {
            const float* residual = p.residual + at + i;
            values = values + (left < kLanes ? load_first(residual, left) : load(residual));
        }
        left < kLanes ? store_first(p.out + at + i, values, left) : store(p.out + at + i, values);
    }
}

using FinishPixels = void (*)(const Conv2dProblem&, Index, Index, Index, const float*);

inline FinishPixels finish_pixels_of(Activation activation) {
    switch (activation) {
        case Activation::gelu_tanh: return finish_pixels<Activation::gelu_tanh>;
        case Activation::gelu_erf: return finish_pixels<Activation::gelu_erf>;
        case Activation::gelu_quick: return finish_pixels<Activation::gelu_quick>;
        case Activation::silu: return finish_pixels<Activation::silu>;
        case Activation::relu: return finish_pixels<Activation::relu>;
        case Activation::none: break;
    }
    return finish_pixels<Activation::none>;
}

/// Rows of memory that will be needed soon, `stride` elements apart, into the caches.
inline void fetch_rows(const float* from, Index stride, int num_rows, Index count) {
    for (int r = 0; r < num_rows; ++r)
        for (Index i = 0; i < count; i += 64 / sizeof(float)) prefetch(from + r * stride + i);
}

/// The thread's part of all channels and of the pixels of all images.
void conv2d(const Conv2dProblem& p, int thread, int num_threads) {
    const Index height = (p.in_height + p.pad_top + p.pad_bottom - p.kernel_height) / p.stride_y + 1;
    const Index width = (p.in_width + p.pad_left + p.pad_right - p.kernel_width) / p.stride_x + 1;
    const Index pixels = height * width, image_panels = ceil_div(pixels, kPanel);
    const Index window = p.kernel_height * p.kernel_width, depth = p.in_channels * window;
    const Index block = window < kPatchBlock ? kPatchBlock / window * window : kPatchBlock;
    const Part part = part_of_thread(p.out_channels, p.batch * image_panels * kPanel, thread, num_threads);
    const auto take = [](Scratch use, Index count) {
        return static_cast<float*>(scratch(use, static_cast<std::size_t>(count) * sizeof(float)));
    };
    float* panels = take(Scratch::panels, kPatchBlock * kPixels);
    float* sums = take(Scratch::sums, larger(part.rows.end - part.rows.begin, 0) * kPixels);
    const FinishPixels finish = finish_pixels_of(p.activation);
    for (Index panel = part.panels.begin, num_panels; panel < part.panels.end; panel += num_panels) {
        const Index batch = panel / image_panels, first = panel % image_panels;
        num_panels = smaller(kPixelPanels, smaller(part.panels.end - panel, image_panels - first));
        const Index pixel = first * kPanel, count = smaller(num_panels * kPanel, pixels - pixel);
        const PixelGroup group(p, width, pixel, count);
        float* room = take(Scratch::rows, group.room());
        for (Index begin = 0; begin < depth; begin += block) {
            const Index end = smaller(begin + block, depth);
            group.gather(reinterpret_cast<const char*>(p.x) + batch * p.x_batch_stride, begin, end, room, panels);
            for (Index channel = part.rows.begin; channel < part.rows.end; channel += kTileRows) {
                const auto num_rows = static_cast<int>(smaller(kTileRows, part.rows.end - channel));
                const float* weights[kTileRows];
                for (int r = 0; r < num_rows; ++r) weights[r] = p.weight + (channel + r) * depth + begin;
                float* tile = sums + (channel - part.rows.begin) * kPixels;
                const Index place = (batch * p.out_channels + channel) * pixels + pixel;
                fetch_rows(tile + kTileRows * kPixels, kPixels, num_rows, count); // of the next tile
                if (end == depth) fetch_rows(p.out + place, pixels, num_rows, count);
                multiply_panels(num_rows, weights, kTileRows * depth, panels, kPatchBlock * kPanel, count, end - begin,
                                tile, kPixels, begin > 0);
                for (int r = 0; r < num_rows && end == depth; ++r)
                    finish(p, channel + r, place + r * pixels, count, tile + r * kPixels);
            }
        }
    }
}

} // namespace
} // namespace edgedit::kernels
