// Convolution of [B, C, H, W] images without a matrix of patches in memory: pixels are the columns of panels, which are
// gathered from the image a block of the sum at a time, and the rows are output channels, whose weights are read where
// they stand.
#pragma once

#include "kernels/impl/activation.hpp"
#include "kernels/impl/multiply_panels.hpp"
#include "kernels/impl/split.hpp"
#include "kernels/scratch.hpp"

namespace edgedit::kernels {
namespace {

/// Pixels that all channels pass before the next: their block of patches and their sums share the L2 cache.
constexpr Index kPixels = kPanel < 64 ? 64 : kPanel;

/// Neighbouring output pixels of one line, as a part of a group of pixels.
struct Run {
    Index first;  ///< column of the group
    Index count;
    Index line;   ///< input line and column that the kernel's upper left corner meets at the first pixel
    Index column; ///< both may lie outside of the image
};

/// The lines that a group of pixels touches, of an image `width` pixels wide: at most one run a line.
inline Index runs_of(const Conv2dProblem& p, Index width, Index pixel, Index count, Run* runs) {
    Index num_runs = 0;
    for (Index done = 0; done < count;) {
        const Index y = (pixel + done) / width, x = (pixel + done) % width, length = smaller(width - x, count - done);
        runs[num_runs++] = {done, length, y * p.stride_y - p.pad_top, x * p.stride_x - p.pad_left};
        done += length;
    }
    return num_runs;
}

/// What a run meets in one line of one channel, `from`, shifted by `column`: zeros beyond both ends of the line.
inline void gather_run(const float* from, Index width, Index column, Index stride, Index count, float* to) {
    if (stride == 1) {
        const Index before = smaller(count, larger(0, -column)), end = smaller(count, larger(before, width - column));
        Index i = 0;
        for (; i < before; ++i) to[i] = 0;
        for (; i + kLanes <= end; i += kLanes) store(to + i, load(from + column + i));
        for (; i < end; ++i) to[i] = from[column + i];
        for (; i < count; ++i) to[i] = 0;
        return;
    }
    for (Index i = 0; i < count; ++i) {
        const Index at = column + i * stride;
        to[i] = at >= 0 && at < width ? from[at] : 0.0f;
    }
}

/// Elements [begin, end) of the patches of a group of pixels, as panels of kBlock steps. `line` has room for a group,
/// its pixels beyond `count` being zeros.
inline void gather_panels(const Conv2dProblem& p, Index batch, const Run* runs, Index num_runs, Index count, Index begin,
                          Index end, float* line, float* panels) {
    const Index window = p.kernel_height * p.kernel_width, num_panels = ceil_div(count, kPanel);
    Index ky = begin % window / p.kernel_width, kx = begin % p.kernel_width;
    const char* image = reinterpret_cast<const char*>(p.x) + batch * p.x_batch_stride + begin / window * p.x_channel_stride;
    for (Index k = begin; k < end; ++k, panels += kPanel) {
        for (const Run* run = runs; run != runs + num_runs; ++run) {
            const Index y = run->line + ky;
            if (y < 0 || y >= p.in_height) {
                for (Index i = 0; i < run->count; ++i) line[run->first + i] = 0;
            } else {
                const auto* from = reinterpret_cast<const float*>(image + y * p.x_line_stride);
                gather_run(from, p.in_width, run->column + kx, p.stride_x, run->count, line + run->first);
            }
        }
        for (Index panel = 0; panel < num_panels; ++panel) {
            EDGEDIT_UNROLL
            for (int v = 0; v < kPanelVectors; ++v)
                store(panels + panel * kBlock * kPanel + v * kLanes, load(line + panel * kPanel + v * kLanes));
        }
        if (++kx < p.kernel_width) continue; // no division: this loop is as hot as the product
        kx = 0;
        if (++ky < p.kernel_height) continue;
        ky = 0;
        image += p.x_channel_stride;
    }
}

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

/// The thread's share: a range of the groups of pixels of all images, all channels of each.
void conv2d(const Conv2dProblem& p, int thread, int num_threads) {
    const Index height = (p.in_height + p.pad_top + p.pad_bottom - p.kernel_height) / p.stride_y + 1;
    const Index width = (p.in_width + p.pad_left + p.pad_right - p.kernel_width) / p.stride_x + 1;
    const Index pixels = height * width, depth = p.in_channels * p.kernel_height * p.kernel_width;
    const Index groups = ceil_div(pixels, kPixels), tiles = ceil_div(p.out_channels, kTileRows);
    const auto take = [](Scratch use, Index count) {
        return static_cast<float*>(scratch(use, static_cast<std::size_t>(count) * sizeof(float)));
    };
    float* panels = take(Scratch::panels, kBlock * kPixels);
    float* sums = take(Scratch::sums, tiles * kTileRows * kPixels);
    const FinishPixels finish = finish_pixels_of(p.activation);
    const Range share = part_of(p.batch * groups, thread, num_threads);
    for (Index group = share.begin; group < share.end; ++group) {
        const Index batch = group / groups, pixel = group % groups * kPixels;
        const Index count = smaller(kPixels, pixels - pixel);
        Run runs[kPixels];
        const Index num_runs = runs_of(p, width, pixel, count, runs);
        alignas(64) float line[kPixels] = {};
        for (Index begin = 0; begin < depth; begin += kBlock) {
            const Index end = smaller(begin + kBlock, depth);
            gather_panels(p, batch, runs, num_runs, count, begin, end, line, panels);
            for (Index channel = 0; channel < p.out_channels; channel += kTileRows) {
                const auto rows = static_cast<int>(smaller(kTileRows, p.out_channels - channel));
                const float* weights[kTileRows];
                for (int r = 0; r < rows; ++r) weights[r] = p.weight + (channel + r) * depth + begin;
                multiply_panels(rows, weights, kTileRows * depth, panels, kBlock * kPanel, count, end - begin,
                                sums + channel * kPixels, kPixels, begin > 0);
            }
        }
        for (Index channel = 0; channel < p.out_channels; ++channel)
            finish(p, channel, (batch * p.out_channels + channel) * pixels + pixel, count, sums + channel * kPixels);
    }
}

} // namespace
} // namespace edgedit::kernels
