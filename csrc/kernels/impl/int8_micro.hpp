// The micro-kernel for integers: products of a block are added as integers, exactly, and then, scaled, as floats to
// sums in memory.
#pragma once

#include "kernels/impl/int8_panel.hpp"
#include "kernels/impl/int8_rows.hpp"

namespace edgedit::kernels {
namespace {

/// Adds to c the products of a block of the weight and of each row's activations from element `begin` of theirs on.
template <typename P, Index kElements, int R>
EDGEDIT_SIMD void multiply_int8_block(const ActivationBlock<P>* const (&rows)[R], Index begin,
                                      const Int8Block<P, kElements>& block, bool has_offsets, float* c,
                                      Index c_stride) {
    typename P::Sums sums[R][kPanelVectors];
    EDGEDIT_UNROLL
    for (int r = 0; r < R; ++r) {
        EDGEDIT_UNROLL
        for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = P::load_sums(block.starts + v * kLanes);
    }
    EDGEDIT_UNROLL
    for (int step = 0; step < block.kSteps; ++step) {
        typename P::Operand columns[kPanelVectors];
        EDGEDIT_UNROLL
        for (int v = 0; v < kPanelVectors; ++v) columns[v] = P::load_columns(block.values[step][v * kLanes]);
        EDGEDIT_UNROLL
        for (int r = 0; r < R; ++r) {
            const auto row = P::broadcast_row(rows[r]->values + begin + step * P::kStep);
            EDGEDIT_UNROLL
            for (int v = 0; v < kPanelVectors; ++v) sums[r][v] = P::add(row, columns[v], sums[r][v]);
        }
    }
    EDGEDIT_UNROLL
    for (int r = 0; r < R; ++r) {
        EDGEDIT_UNROLL
        for (int v = 0; v < kPanelVectors; ++v) {
            float* to = c + r * c_stride + v * kLanes;
            const Floats scale = broadcast(&rows[r]->scale) * load(block.scales + v * kLanes);
            Floats total = fma(P::to_floats(sums[r][v]), scale, load(to));
            if constexpr (block.kHasOffsets)
                if (has_offsets) total = fma(broadcast(&rows[r]->sum), load(block.offsets + v * kLanes), total);
            store(to, total);
        }
    }
}

/// C (+)= A B for R rows and a panel, in the order of k.
///
///   a            a pointer per row, `count` blocks of activations long
///   ahead        blocks from each row to what to fetch into the caches meanwhile; any distance will do
///   b            as many elements
///   has_offsets  whether any offset of b is not zero
template <typename P, Index kElements, int R>
EDGEDIT_SIMD void multiply_int8_rows(const ActivationBlock<P>* const* a, Index ahead, const Int8Block<P, kElements>* b,
                                     Index count, bool has_offsets, float* c, Index c_stride, bool accumulate) {
    const ActivationBlock<P>* rows[R];
    EDGEDIT_UNROLL
    for (int r = 0; r < R; ++r) {
        rows[r] = a[r];
        if (!accumulate) std::memset(c + r * c_stride, 0, kPanel * sizeof(float));
    }
    for (Index i = 0; i < count; ++i) {
        EDGEDIT_UNROLL
        for (int r = 0; r < R; ++r) prefetch(rows[r] + ahead);
        for (Index begin = 0; begin < kShortBlock; begin += kElements, ++b) {
            multiply_int8_block<P, kElements, R>(rows, begin, *b, has_offsets, c, c_stride);
            __asm__("" : : : "memory"); // the registers are for the integers: no part of c stays in them
        }
        EDGEDIT_UNROLL
        for (int r = 0; r < R; ++r) ++rows[r];
    }
}

/// `multiply_int8_rows` for 1 to kTileRows rows.
template <typename P, Index kElements>
inline void multiply_int8_tile(int num_rows, const ActivationBlock<P>* const* a, Index ahead,
                               const Int8Block<P, kElements>* b, Index count, bool has_offsets, float* c,
                               Index c_stride, bool accumulate) {
    switch (num_rows) {
        case 1: return multiply_int8_rows<P, kElements, 1>(a, ahead, b, count, has_offsets, c, c_stride, accumulate);
        case 2: return multiply_int8_rows<P, kElements, 2>(a, ahead, b, count, has_offsets, c, c_stride, accumulate);
        case 3: return multiply_int8_rows<P, kElements, 3>(a, ahead, b, count, has_offsets, c, c_stride, accumulate);
        case 4: return multiply_int8_rows<P, kElements, 4>(a, ahead, b, count, has_offsets, c, c_stride, accumulate);
        case 5: return multiply_int8_rows<P, kElements, 5>(a, ahead, b, count, has_offsets, c, c_stride, accumulate);
        default: return multiply_int8_rows<P, kElements, 6>(a, ahead, b, count, has_offsets, c, c_stride, accumulate);
    }
}

} // namespace
} // namespace edgedit::kernels
