// Vectors of the family avx2: 8 floats. Every simd_*.hpp offers the same names.
#pragma once

#include <immintrin.h>

#include "kernels/impl/elements.hpp"

namespace edgedit::kernels {
namespace {

#define EDGEDIT_SIMD inline __attribute__((always_inline))
#if defined(__clang__)
#define EDGEDIT_UNROLL _Pragma("unroll")
#else
#define EDGEDIT_UNROLL _Pragma("GCC unroll 16")
#endif

constexpr Index kLanes = 8;
constexpr Index kPanelVectors = 2; ///< of a panel's columns, so that a tile of 6 rows fills the registers
#define EDGEDIT_HAS_PAIRS 0 // products of pairs of bf16

// A block of the weight, kGroup panels of kBlock inner elements, stays in the L2 cache while all rows pass.
constexpr Index kBlock = 256; ///< a multiple of 256, the longest block of a quantised type
constexpr Index kGroup = 16;

struct Floats {
    __m256 v;
};
struct Mask {
    __m256 v;
};

EDGEDIT_SIMD Floats zeros() { return {_mm256_setzero_ps()}; }
EDGEDIT_SIMD Floats broadcast(float value) { return {_mm256_set1_ps(value)}; }
EDGEDIT_SIMD Floats broadcast(const float* value) { return {_mm256_broadcast_ss(value)}; }

EDGEDIT_SIMD Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
EDGEDIT_SIMD Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.v, b.v)}; }
EDGEDIT_SIMD Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
EDGEDIT_SIMD Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }

/// a b + c, and c - a b, rounded once.
EDGEDIT_SIMD Floats fma(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
EDGEDIT_SIMD Floats fnma(Floats a, Floats b, Floats c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }

/// sum += a b, rounded once. In assembly because GCC, when it unrolls, would spread the sums of a tile over more
/// registers than there are.
EDGEDIT_SIMD void add_product(Floats a, Floats b, Floats& sum) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum.v) : "x"(a.v), "x"(b.v));
}

/// b where either is NaN.
EDGEDIT_SIMD Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.v, b.v)}; }
EDGEDIT_SIMD Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.v, b.v)}; }

EDGEDIT_SIMD Floats abs(Floats a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }

/// To the nearest integer, ties to even.
EDGEDIT_SIMD Floats round(Floats a) {
    return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

/// 1 / a within 2 ulp, for normal a with a normal reciprocal.
EDGEDIT_SIMD Floats reciprocal(Floats a) { return broadcast(1.0f) / a; }

/// 2^n for integers n in [-127, 128]: the ends give 0 and infinity.
EDGEDIT_SIMD Floats power_of_two(Floats n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))};
}

EDGEDIT_SIMD Mask less(Floats a, Floats b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
EDGEDIT_SIMD Floats select(Mask mask, Floats yes, Floats no) { return {_mm256_blendv_ps(no.v, yes.v, mask.v)}; }

EDGEDIT_SIMD Floats load(const float* from) { return {_mm256_loadu_ps(from)}; }
EDGEDIT_SIMD Floats load(const F16* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
EDGEDIT_SIMD Floats load(const BF16* from) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
}

EDGEDIT_SIMD void store(float* to, Floats a) { _mm256_storeu_ps(to, a.v); }
EDGEDIT_SIMD void store(F16* to, Floats a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
EDGEDIT_SIMD void store(BF16* to, Floats a) {
    const __m256i bits = _mm256_castps_si256(a.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(64 << 16));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halves);
}

EDGEDIT_SIMD __m256i first_lanes(Index count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/// The first `count` < kLanes elements; the other lanes are 0, and memory beyond is not touched.
EDGEDIT_SIMD Floats load_first(const float* from, Index count) {
    return {_mm256_maskload_ps(from, first_lanes(count))};
}
template <typename Half> EDGEDIT_SIMD Floats load_first(const Half* from, Index count) {
    Half halves[kLanes] = {};
    std::memcpy(halves, from, static_cast<std::size_t>(count) * sizeof(Half));
    return load(halves);
}

EDGEDIT_SIMD void store_first(float* to, Floats a, Index count) { _mm256_maskstore_ps(to, first_lanes(count), a.v); }
template <typename Half> EDGEDIT_SIMD void store_first(Half* to, Floats a, Index count) {
    Half halves[kLanes];
    store(halves, a);
    std::memcpy(to, halves, static_cast<std::size_t>(count) * sizeof(Half));
}

// Reductions join lane i with i + 4, then with i + 2, then with i + 1.

EDGEDIT_SIMD float reduce_add(Floats a) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
EDGEDIT_SIMD float reduce_max(Floats a) {
    __m128 largest = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    largest = _mm_max_ps(largest, _mm_movehl_ps(largest, largest));
    return _mm_cvtss_f32(_mm_max_ss(largest, _mm_movehdup_ps(largest)));
}

/// rows[i] lane j <-> rows[j] lane i.
EDGEDIT_SIMD void transpose(Floats (&rows)[kLanes]) {
    __m256 pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(rows[i].v, rows[i + 1].v);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i].v, rows[i + 1].v);
    }
    for (int i = 0; i < 8; i += 4)
        for (int half = 0; half < 2; ++half) {
            quads[i + 2 * half] = _mm256_shuffle_ps(pairs[i + half], pairs[i + 2 + half], 0x44);
            quads[i + 2 * half + 1] = _mm256_shuffle_ps(pairs[i + half], pairs[i + 2 + half], 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        rows[i].v = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
        rows[i + 4].v = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
    }
}

EDGEDIT_SIMD void prefetch(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0); }

} // namespace
} // namespace edgedit::kernels
