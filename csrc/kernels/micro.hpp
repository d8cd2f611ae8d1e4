// The one micro-kernel: C (+)= A B for a tile of up to 6 rows by a few vectors of columns, kept in registers.
//
// Included after a simd_*.hpp, whose vectors it is made of.
#pragma once

#include "kernels/impl/elements.hpp"

namespace edgedit::kernels {
namespace {

constexpr int kTileRows = 6;
constexpr Index kPanel = kPanelVectors * kLanes;

/// How elements are multiplied: kStep neighbours along k at once, which B holds side by side for every column.
template <typename Element> struct Products;

template <> struct Products<float> {
    static constexpr Index kStep = 1;
    using Operand = Floats;
    static EDGEDIT_SIMD Operand broadcast_row(const float* a) { return broadcast(a); }
    static EDGEDIT_SIMD Operand broadcast_last(const float* a) { return broadcast(a); }
    static EDGEDIT_SIMD Operand load_columns(const float* b) { return load(b); }
};

#if EDGEDIT_HAS_PAIRS
template <> struct Products<BF16> {
    static constexpr Index kStep = 2;
    using Operand = Pairs;
    static EDGEDIT_SIMD Operand broadcast_row(const BF16* a) { return broadcast_pair(a); }
    static EDGEDIT_SIMD Operand broadcast_last(const BF16* a) { return broadcast_single(a); } // an odd k ends with one
    static EDGEDIT_SIMD Operand load_columns(const BF16* b) { return load_pairs(b); }
};
#endif

template <typename Element, bool IsLast, int R, int Vectors>
EDGEDIT_SIMD void multiply_step(const Element* const (&rows)[R], Index at, const Element* b,
                                Floats (&sums)[R][Vectors]) {
    using P = Products<Element>;
    typename P::Operand columns[Vectors];
    EDGEDIT_UNROLL
    for (int v = 0; v < Vectors; ++v) columns[v] = P::load_columns(b + v * kLanes * P::kStep);
    EDGEDIT_UNROLL
    for (int r = 0; r < R; ++r) {
        const auto row = IsLast ? P::broadcast_last(rows[r] + at) : P::broadcast_row(rows[r] + at);
        EDGEDIT_UNROLL
        for (int v = 0; v < Vectors; ++v) add_product(row, columns[v], sums[r][v]);
    }
}

/// C[r][n] (+)= sum of A[r][k] B[k][n] in the order of k, for R rows and Vectors * kLanes columns.
///
///   a        a pointer per row; elements along k are dense
///   ahead    distance in elements from each row to what to fetch into the caches meanwhile: a row of the next tile,
///            say. Any distance will do; 0 fetches nothing
///   b        f32 [k][columns], or bf16 [ceil(k / 2)][columns][2] with zeros beyond an odd k; b_stride elements from
///            one step of k to the next
///   c        c_stride elements from row to row. `accumulate` continues sums that were stored there, which gives the
///            same bits as going on in registers
template <typename Element, int R, int Vectors>
EDGEDIT_SIMD void multiply_rows(const Element* const* a, Index ahead, const Element* b, Index b_stride, Index k,
                                float* c, Index c_stride, bool accumulate) {
    constexpr Index kStep = Products<Element>::kStep, kUnrolled = 4 * kStep, kCacheLine = 64 / sizeof(Element);
    const Element* rows[R];
    Floats sums[R][Vectors];
    EDGEDIT_UNROLL
    for (int r = 0; r < R; ++r) {
        rows[r] = a[r];
        EDGEDIT_UNROLL
        for (int v = 0; v < Vectors; ++v) sums[r][v] = accumulate ? load(c + r * c_stride + v * kLanes) : zeros();
    }
    Index at = 0;
    for (; at + kUnrolled <= k; at += kUnrolled, b += 4 * b_stride) {
        if (ahead != 0 && at % kCacheLine == 0) {
            EDGEDIT_UNROLL
            for (int r = 0; r < R; ++r) prefetch(rows[r] + at + ahead);
        }
        __asm__("" : "+r"(at)); // else GCC keeps one index per step, and runs out of registers
        EDGEDIT_UNROLL
        for (int step = 0; step < 4; ++step)
            multiply_step<Element, false>(rows, at + step * kStep, b + step * b_stride, sums);
    }
    for (; at + kStep <= k; at += kStep, b += b_stride) multiply_step<Element, false>(rows, at, b, sums);
    if (at < k) multiply_step<Element, true>(rows, at, b, sums);
    EDGEDIT_UNROLL
    for (int r = 0; r < R; ++r) {
        EDGEDIT_UNROLL
        for (int v = 0; v < Vectors; ++v) store(c + r * c_stride + v * kLanes, sums[r][v]);
    }
}

/// `multiply_rows` for 1 to kTileRows rows, of a panel of kPanel columns if not told otherwise.
template <typename Element, int Vectors = kPanelVectors>
inline void multiply_tile(int num_rows, const Element* const* a, Index ahead, const Element* b, Index b_stride, Index k,
                          float* c, Index c_stride, bool accumulate) {
    switch (num_rows) {
        case 1: return multiply_rows<Element, 1, Vectors>(a, ahead, b, b_stride, k, c, c_stride, accumulate);
        case 2: return multiply_rows<Element, 2, Vectors>(a, ahead, b, b_stride, k, c, c_stride, accumulate);
        case 3: return multiply_rows<Element, 3, Vectors>(a, ahead, b, b_stride, k, c, c_stride, accumulate);
        case 4: return multiply_rows<Element, 4, Vectors>(a, ahead, b, b_stride, k, c, c_stride, accumulate);
        case 5: return multiply_rows<Element, 5, Vectors>(a, ahead, b, b_stride, k, c, c_stride, accumulate);
        default: return multiply_rows<Element, 6, Vectors>(a, ahead, b, b_stride, k, c, c_stride, accumulate);
    }
}

} // namespace
} // namespace edgedit::kernels
