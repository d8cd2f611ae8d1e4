// Products of integers on AVX-512 with VNNI. A step multiplies four neighbours along k, for every column, and adds
// them up.
#pragma once

#include "kernels/simd_avx512.hpp"

namespace edgedit::kernels {
namespace {

/// Weights of up to eight bits by activations in [-127, 127], which are stored plus 128: sums start from what that will
/// have added, negated.
struct ByteProducts {
    static constexpr Index kStep = 4;
    static constexpr int kBias = 128;
    using Weight = std::int8_t;
    using Activation = std::uint8_t;
    struct Operand {
        __m512i v;
    };
    struct Sums {
        __m512i v;
    };
    static EDGEDIT_SIMD void store_activations(const Floats (&integers)[2], Activation* to) {
        for (int i = 0; i < 2; ++i) {
            const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(integers[i].v));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + i, _mm_xor_si128(bytes, _mm_set1_epi8(-128)));
        }
    }
    static EDGEDIT_SIMD Operand broadcast_row(const Activation* a) {
        std::int32_t quad;
        std::memcpy(&quad, a, sizeof quad);
        return {_mm512_set1_epi32(quad)};
    }
    static EDGEDIT_SIMD Operand load_columns(const Weight* w) { return {_mm512_loadu_si512(w)}; }
    static EDGEDIT_SIMD Sums load_sums(const std::int32_t* from) { return {_mm512_loadu_si512(from)}; }
    static EDGEDIT_SIMD void store_negated(std::int32_t* to, Sums sums) {
        _mm512_storeu_si512(to, _mm512_sub_epi32(_mm512_setzero_si512(), sums.v));
    }
    static EDGEDIT_SIMD Sums add(Operand row, Operand columns, Sums sums) {
        return {_mm512_dpbusd_epi32(sums.v, row.v, columns.v)};
    }
    static EDGEDIT_SIMD Floats to_floats(Sums sums) { return {_mm512_cvtepi32_ps(sums.v)}; }
};
using WideProducts = ByteProducts;

} // namespace
} // namespace edgedit::kernels
