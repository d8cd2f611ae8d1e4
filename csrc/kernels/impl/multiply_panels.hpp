// A tile of rows by several panels, which stream from the second-level cache meanwhile.
#pragma once

#include "kernels/micro.hpp"

namespace edgedit::kernels {
namespace {

/// Elements from one row to the next, for `count` of them: whole cache lines and an odd number, so that neighbouring
/// rows fall into different sets of the caches.
template <typename Element> constexpr Index row_stride(Index count) {
    constexpr Index kLine = 64 / sizeof(Element);
    return ((count + kLine - 1) / kLine | 1) * kLine;
}

/// `multiply_tile` for as many vectors of columns as there are, up to a panel.
template <typename Element, int Most = kPanelVectors>
inline void multiply_vectors(Index vectors, int num_rows, const Element* const* a, Index ahead, const Element* b,
                             Index k, float* c, Index c_stride, bool accumulate) {
    constexpr Index kStride = kPanel * Products<Element>::kStep;
    if constexpr (Most > 1) {
        if (vectors < Most)
            return multiply_vectors<Element, Most - 1>(vectors, num_rows, a, ahead, b, k, c, c_stride, accumulate);
    }
    multiply_tile<Element, Most>(num_rows, a, ahead, b, kStride, k, c, c_stride, accumulate);
}

/// C (+)= A B as `multiply_tile` does it, for any number of columns in panels `panel_stride` elements apart. As many of
/// them are written as vectors hold `columns`.
template <typename Element>
inline void multiply_panels(int num_rows, const Element* const* a, Index ahead, const Element* b, Index panel_stride,
                            Index columns, Index k, float* c, Index c_stride, bool accumulate) {
    for (Index column = 0; column < columns; column += kPanel, b += panel_stride)
        multiply_vectors(ceil_div(smaller(columns - column, kPanel), kLanes), num_rows, a, ahead, b, k, c + column,
                         c_stride, accumulate);
}

} // namespace
} // namespace edgedit::kernels
