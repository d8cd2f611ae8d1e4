// Vectors of the family avx512: 16 floats, and products of pairs of bf16.
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

constexpr Index kLanes = 16;
constexpr Index kPanelVectors = 4;
#define EDGEDIT_HAS_PAIRS 1

constexpr Index kBlock = 512;
constexpr Index kGroup = 4;

struct Floats {
    __m512 v;
};
struct Mask {
    __mmask16 v;
};
/// kLanes pairs of neighbouring bf16.
struct Pairs {
    __m512bh v;
};

EDGEDIT_SIMD Floats zeros() { return {_mm512_setzero_ps()}; }
EDGEDIT_SIMD Floats broadcast(float value) { return {_mm512_set1_ps(value)}; }
EDGEDIT_SIMD Floats broadcast(const float* value) { return {_mm512_set1_ps(*value)}; }

EDGEDIT_SIMD Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
EDGEDIT_SIMD Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
EDGEDIT_SIMD Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
EDGEDIT_SIMD Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }

EDGEDIT_SIMD Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
EDGEDIT_SIMD Floats fnma(Floats a, Floats b, Floats c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }

EDGEDIT_SIMD void add_product(Floats a, Floats b, Floats& sum) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
}

EDGEDIT_SIMD Floats max(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
EDGEDIT_SIMD Floats min(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
EDGEDIT_SIMD Floats abs(Floats a) { return {_mm512_abs_ps(a.v)}; }

EDGEDIT_SIMD Floats round(Floats a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

EDGEDIT_SIMD Floats reciprocal(Floats a) {
    const __m512 guess = _mm512_rcp14_ps(a.v); // one step of Newton's doubles its 14 bits
    return {_mm512_mul_ps(guess, _mm512_fnmadd_ps(a.v, guess, _mm512_set1_ps(2.0f)))};
}

EDGEDIT_SIMD Floats power_of_two(Floats n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}

EDGEDIT_SIMD Mask less(Floats a, Floats b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
EDGEDIT_SIMD Floats select(Mask mask, Floats yes, Floats no) { return {_mm512_mask_blend_ps(mask.v, no.v, yes.v)}; }

EDGEDIT_SIMD Floats widen_halves(__m256i halves, F16) { return {_mm512_cvtph_ps(halves)}; }
EDGEDIT_SIMD Floats widen_halves(__m256i halves, BF16) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
EDGEDIT_SIMD __m256i narrow_to_halves(Floats a, F16) { return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT); }
EDGEDIT_SIMD __m256i narrow_to_halves(Floats a, BF16) {
    // not vcvtneps2bf16, which takes denormals for zero
    const __m512i bits = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(64 << 16));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16));
}

EDGEDIT_SIMD Floats load(const float* from) { return {_mm512_loadu_ps(from)}; }
template <typename Half> EDGEDIT_SIMD Floats load(const Half* from) {
    return widen_halves(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), Half{});
}

EDGEDIT_SIMD void store(float* to, Floats a) { _mm512_storeu_ps(to, a.v); }
template <typename Half> EDGEDIT_SIMD void store(Half* to, Floats a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow_to_halves(a, Half{}));
}

EDGEDIT_SIMD __mmask16 first_lanes(Index count) { return static_cast<__mmask16>((1u << count) - 1u); }

EDGEDIT_SIMD Floats load_first(const float* from, Index count) {
    return {_mm512_maskz_loadu_ps(first_lanes(count), from)};
}
template <typename Half> EDGEDIT_SIMD Floats load_first(const Half* from, Index count) {
    return widen_halves(_mm256_maskz_loadu_epi16(first_lanes(count), from), Half{});
}

EDGEDIT_SIMD void store_first(float* to, Floats a, Index count) { _mm512_mask_storeu_ps(to, first_lanes(count), a.v); }
template <typename Half> EDGEDIT_SIMD void store_first(Half* to, Floats a, Index count) {
    _mm256_mask_storeu_epi16(to, first_lanes(count), narrow_to_halves(a, Half{}));
}

EDGEDIT_SIMD Pairs load_pairs(const BF16* from) { return {(__m512bh)_mm512_loadu_si512(from)}; }

/// The same pair in every lane.
EDGEDIT_SIMD Pairs broadcast_pair(const BF16* from) {
    std::int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return {(__m512bh)_mm512_set1_epi32(pair)};
}

/// One element and a zero behind it.
EDGEDIT_SIMD Pairs broadcast_single(const BF16* from) { return {(__m512bh)_mm512_set1_epi32(from->bits)}; }

/// sum += odd products, then even products, each rounded; denormals count as zero.
EDGEDIT_SIMD void add_product(Pairs a, Pairs b, Floats& sum) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
}

// Reductions join lane i with i + 8, then with i + 4, i + 2 and i + 1.

EDGEDIT_SIMD float reduce_add(Floats a) {
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
EDGEDIT_SIMD float reduce_max(Floats a) {
    const __m256 halves = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    __m128 largest = _mm_max_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
    largest = _mm_max_ps(largest, _mm_movehl_ps(largest, largest));
    return _mm_cvtss_f32(_mm_max_ss(largest, _mm_movehdup_ps(largest)));
}

EDGEDIT_SIMD void transpose(Floats (&rows)[kLanes]) {
    __m512 pairs[16], quads[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_ps(rows[i].v, rows[i + 1].v);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i].v, rows[i + 1].v);
    }
    for (int i = 0; i < 16; i += 4)
        for (int half = 0; half < 2; ++half) {
            quads[i + 2 * half] = _mm512_shuffle_ps(pairs[i + half], pairs[i + 2 + half], 0x44);
            quads[i + 2 * half + 1] = _mm512_shuffle_ps(pairs[i + half], pairs[i + 2 + half], 0xee);
        }
    // quads[4 g + j] holds columns j, j + 4, j + 8, j + 12 of rows 4 g to 4 g + 3, a quarter each
    for (int j = 0; j < 4; ++j) {
        const __m512 low_even = _mm512_shuffle_f32x4(quads[j], quads[4 + j], 0x88);
        const __m512 low_odd = _mm512_shuffle_f32x4(quads[j], quads[4 + j], 0xdd);
        const __m512 high_even = _mm512_shuffle_f32x4(quads[8 + j], quads[12 + j], 0x88);
        const __m512 high_odd = _mm512_shuffle_f32x4(quads[8 + j], quads[12 + j], 0xdd);
        rows[j].v = _mm512_shuffle_f32x4(low_even, high_even, 0x88);
        rows[j + 4].v = _mm512_shuffle_f32x4(low_odd, high_odd, 0x88);
        rows[j + 8].v = _mm512_shuffle_f32x4(low_even, high_even, 0xdd);
        rows[j + 12].v = _mm512_shuffle_f32x4(low_odd, high_odd, 0xdd);
    }
}

EDGEDIT_SIMD void prefetch(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0); }

} // namespace
} // namespace edgedit::kernels
