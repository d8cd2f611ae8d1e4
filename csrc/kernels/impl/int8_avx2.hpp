// Products of integers on AVX2. A step multiplies neighbours along k, for every column, and adds them up.
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

EDGEDIT_SIMD void store_lanes(void* to, __m256i lanes) { _mm256_storeu_si256(static_cast<__m256i*>(to), lanes); }

/// Two vectors of integers as one of 16 bits: quarters in the order first[0], second[0], first[1], second[1].
EDGEDIT_SIMD __m256i narrow(Floats first, Floats second) {
    return _mm256_packs_epi32(_mm256_cvtps_epi32(first.v), _mm256_cvtps_epi32(second.v));
}

/// Small weights by activations in [-127, 127]: 32 neighbours where weights are in [-16, 16], 16 where in [-32, 32].
///
/// All adding is done in 16 bits, of which each column has two lots for every other pair of neighbours. Activations are
/// stored plus 128, for vpmaddubsw wants one side unsigned; the pairs that it adds stay below 2 * 255 * 32, so that it
/// never saturates. Sums start from what the 128 will have contributed, negated. They may wrap on the way, but end as
/// the products of the true activations, 16 * 127 * 16 or 8 * 127 * 32 at most, which 16 bits hold.
struct ByteProducts {
    static constexpr Index kStep = 4;
    static constexpr int kBias = 128;
    using Weight = std::int8_t;
    using Activation = std::uint8_t;
    struct Operand {
        __m256i v;
    };
    struct Sums {
        __m256i v;
    };
    static EDGEDIT_SIMD void store_activations(const Floats (&integers)[4], Activation* to) {
        const __m256i mixed = _mm256_packs_epi16(narrow(integers[0], integers[1]), narrow(integers[2], integers[3]));
        const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        store_lanes(to, _mm256_xor_si256(bytes, _mm256_set1_epi8(-128))); // + 128
    }
    static EDGEDIT_SIMD Operand broadcast_row(const Activation* a) { return {broadcast_lane(a)}; }
    static EDGEDIT_SIMD Operand load_columns(const Weight* w) { return {load_lanes(w)}; }
    static EDGEDIT_SIMD Sums load_sums(const std::int32_t* from) { return {load_lanes(from)}; }
    static EDGEDIT_SIMD void store_negated(std::int32_t* to, Sums sums) {
        store_lanes(to, _mm256_sub_epi16(_mm256_setzero_si256(), sums.v));
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
    static EDGEDIT_SIMD void store_activations(const Floats (&integers)[4], Activation* to) {
        for (int i = 0; i < 2; ++i)
            store_lanes(to + 16 * i, _mm256_permute4x64_epi64(narrow(integers[2 * i], integers[2 * i + 1]), 0xd8));
    }
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
