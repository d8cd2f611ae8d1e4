// Products of integers on AVX2. A step multiplies neighbours along k for every column, and adds them up.
#pragma once

#include "kernels/simd_avx2.hpp"

namespace edgedit::kernels {
namespace {

/// Stands for the sum, so that compilers keep to the order in which it is written: they would compute the products of
/// all rows before they add, for which the registers do not suffice.
EDGEDIT_SIMD __m256i in_order(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

template <typename Element> EDGEDIT_SIMD __m256i broadcast_lane(const Element* elements) {
    std::int32_t lane;
    std::memcpy(&lane, elements, sizeof lane);
    return _mm256_set1_epi32(lane);
}

EDGEDIT_SIMD __m256i load_lanes(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

/// Small weights by activations in [-127, 127]: up to 32 steps' elements of [-16, 16], or 16 of [-32, 32].
///
/// The activations are stored plus 128. Two products of a weight and such a byte fit into the 16 bits that vpmaddubsw
/// adds them in, and wrap nowhere else but in sums: these start from what the 128 will have added, negated, so that they
/// end as the 8 or 16 products in a half lane of the activations as they are, at most 16 * 127 * 16 or 8 * 127 * 32.
struct ByteProducts {
    static constexpr Index kStep = 4;
    static constexpr int kBias = 128;
    using Weight = std::int8_t;
    using Activation = std::uint8_t;
    struct Operand {
        __m256i v;
    };
    struct Sums {
        __m256i v; ///< two halves of 16 bits for each column
    };
    static EDGEDIT_SIMD Operand broadcast_row(const Activation* a) { return {broadcast_lane(a)}; }
    static EDGEDIT_SIMD Operand load_columns(const Weight* w) { return {load_lanes(w)}; }
    static EDGEDIT_SIMD Sums load_sums(const std::int32_t* from) { return {load_lanes(from)}; }
    static EDGEDIT_SIMD void store_negated(std::int32_t* to, Sums sums) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_sub_epi16(_mm256_setzero_si256(), sums.v));
    }
    static EDGEDIT_SIMD Sums add(Operand row, Operand columns, Sums sums) {
        return {in_order(_mm256_add_epi16(sums.v, _mm256_maddubs_epi16(row.v, columns.v)))};
    }
    static EDGEDIT_SIMD Floats to_floats(Sums sums) {
        return {_mm256_cvtepi32_ps(_mm256_madd_epi16(sums.v, _mm256_set1_epi16(1)))};
    }
};

/// Weights of eight bits: products of bytes would not fit into 16 bits, so both are widened.
struct WideProducts {
    static constexpr Index kStep = 2;
    static constexpr int kBias = 0;
    using Weight = std::int16_t;
    using Activation = std::int16_t;
    struct Operand {
        __m256i v;
    };
    struct Sums {
        __m256i v;
    };
    static EDGEDIT_SIMD Operand broadcast_row(const Activation* a) { return {broadcast_lane(a)}; }
    static EDGEDIT_SIMD Operand load_columns(const Weight* w) { return {load_lanes(w)}; }
    static EDGEDIT_SIMD Sums load_sums(const std::int32_t*) { return {_mm256_setzero_si256()}; }
    static EDGEDIT_SIMD Sums add(Operand row, Operand columns, Sums sums) {
        return {in_order(_mm256_add_epi32(sums.v, _mm256_madd_epi16(row.v, columns.v)))};
    }
    static EDGEDIT_SIMD Floats to_floats(Sums sums) { return {_mm256_cvtepi32_ps(sums.v)}; }
};

} // namespace
} // namespace edgedit::kernels
