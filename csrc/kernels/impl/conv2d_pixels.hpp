// The patches of output pixels as the columns of panels, gathered straight from the image.
#pragma once

#include "kernels/micro.hpp"

namespace edgedit::kernels {
namespace {

/// Output pixels that are convolved together, and how many elements of their patches are gathered at a time at most.
/// The panels of both stay in the second-level cache while all channels pass.
constexpr Index kPixelPanels = kPanel < 64 ? 8 : 4;
constexpr Index kPixels = kPixelPanels * kPanel;
constexpr Index kPatchBlock = 256;

/// Neighbouring output pixels of one image, and the region of a channel that their patches cover.
class PixelGroup {
public:
    /// Pixels [first, first + count) of an output `width` pixels wide; count is at most kPixels. The last one stands in
    /// for those that its vector lacks.
    PixelGroup(const Conv2dProblem& problem, Index width, Index first, Index count)
        : p_(problem), num_vectors_(ceil_div(count, kLanes)) {
        const Index first_row = first / width, last_row = (first + count - 1) / width;
        const bool is_one_row = first_row == last_row;
        const Index first_column = is_one_row ? first % width : 0;
        const Index last_column = is_one_row ? (first + count - 1) % width : width - 1;
        top_ = first_row * p_.stride_y - p_.pad_top;
        left_ = first_column * p_.stride_x - p_.pad_left;
        lines_ = (last_row - first_row) * p_.stride_y + p_.kernel_height;
        columns_ = (last_column - first_column) * p_.stride_x + p_.kernel_width;
        is_inside_ = top_ >= 0 && left_ >= 0 && top_ + lines_ <= p_.in_height && left_ + columns_ <= p_.in_width;
        line_stride_ = is_inside_ ? p_.x_line_stride / static_cast<Index>(sizeof(float)) : columns_;
        Index row = 0, column = first % width - first_column;
        for (Index i = 0; i < num_vectors_ * kLanes; ++i) {
            offsets_[i] = row * p_.stride_y * line_stride_ + column * p_.stride_x;
            if (i + 1 < count && ++column == width - first_column) column = 0, ++row;
        }
        for (Index v = 0; v < num_vectors_; ++v) {
            are_dense_[v] = true;
            for (Index i = v * kLanes + 1; i < (v + 1) * kLanes; ++i)
                are_dense_[v] = are_dense_[v] && offsets_[i] == offsets_[i - 1] + 1;
        }
    }

    /// Elements that `gather` needs room for: zeros around the part of a region that the image covers.
    Index room() const { return is_inside_ ? 0 : lines_ * columns_; }

    /// Elements [begin, end) of the patches as [kPixelPanels][kPatchBlock][kPanel].
    void gather(const char* image, Index begin, Index end, float* room, float* panels) const {
        const Index window = p_.kernel_height * p_.kernel_width;
        const Index ahead = (1 + kElementsAhead / window) * p_.x_channel_stride;
        const char* channel = image + begin / window * p_.x_channel_stride;
        for (Index k = begin; k < end; channel += p_.x_channel_stride) {
            fetch_region(channel + ahead);
            const float* region = is_inside_ ? pixel(channel, top_, left_) : pad_region(channel, room);
            const Index first = k % window, count = smaller(window - first, end - k);
            gather_channel(region, first, count, panels + (k - begin) * kPanel);
            k += count;
        }
    }

private:
    /// How far ahead regions are fetched into the caches: channels stand far apart, which no processor foresees.
    static constexpr Index kElementsAhead = 8;

    const float* pixel(const char* channel, Index y, Index x) const {
        return reinterpret_cast<const float*>(channel + y * p_.x_line_stride) + x;
    }

    void fetch_region(const char* channel) const {
        const Index bottom = smaller(top_ + lines_, p_.in_height);
        for (Index y = larger(top_, 0); y < bottom; ++y)
            for (Index x = 0; x < columns_; x += 64 / sizeof(float)) prefetch(pixel(channel, y, left_ + x));
    }

    const float* pad_region(const char* channel, float* room) const {
        const Index before = smaller(larger(-left_, 0), columns_);
        const Index inside = larger(smaller(columns_, p_.in_width - left_) - before, 0);
        float* line = room;
        for (Index y = top_; y < top_ + lines_; ++y, line += columns_) {
            const bool is_outside = y < 0 || y >= p_.in_height || inside == 0;
            const Index begin = is_outside ? columns_ : before, end = is_outside ? columns_ : before + inside;
            for (Index x = 0; x < begin; ++x) line[x] = 0;
            if (begin < end) copy(line + begin, pixel(channel, y, left_ + begin), end - begin);
            for (Index x = end; x < columns_; ++x) line[x] = 0;
        }
        return room;
    }

    static void copy(float* to, const float* from, Index count) {
        std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
    }

    /// `count` elements of the kernel, row by row from `first` on, over the region of one channel; vector by vector, to
    /// write memory in order.
    void gather_channel(const float* region, Index first, Index count, float* panels) const {
        const float* first_line = region + first / p_.kernel_width * line_stride_;
        const Index first_x = first % p_.kernel_width;
        for (Index v = 0; v < num_vectors_; ++v) {
            const Index* offsets = offsets_ + v * kLanes;
            float* to = panels + v / kPanelVectors * kPatchBlock * kPanel + v % kPanelVectors * kLanes;
            const float* const end = to + count * kPanel;
            const float* line = first_line;
            for (Index x = first_x; to < end; line += line_stride_, x = 0)
                for (; x < p_.kernel_width && to < end; ++x, to += kPanel) {
                    if (are_dense_[v]) {
                        store(to, load(line + offsets[0] + x));
                    } else {
                        for (Index lane = 0; lane < kLanes; ++lane) to[lane] = line[offsets[lane] + x];
                    }
                }
        }
    }

    const Conv2dProblem& p_;
    Index num_vectors_;
    Index top_, left_, lines_, columns_; ///< of the region
    bool is_inside_;                     ///< the image covers the region
    Index line_stride_;                  ///< of the region, in elements
    Index offsets_[kPixels];             ///< of each pixel's patch in the region
    bool are_dense_[kPixels / kLanes];   ///< a vector's pixels are neighbours in the region
};

} // namespace
} // namespace edgedit::kernels
