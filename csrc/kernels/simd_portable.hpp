// Vectors of the family portable, for any processor: the shape of avx512 on the vector extensions of GCC and Clang.
#pragma once

#include "kernels/impl/elements.hpp"

namespace edgedit::kernels {
namespace {

#define EDGEDIT_SIMD inline __attribute__((always_inline))
// Not at all: a tile does not fit into the registers of most processors.
#if defined(__clang__)
#define EDGEDIT_UNROLL _Pragma("nounroll")
#else
#define EDGEDIT_UNROLL _Pragma("GCC unroll 1")
#endif

constexpr Index kLanes = 16;
constexpr Index kPanelVectors = 4;
#define EDGEDIT_HAS_PAIRS 1

constexpr Index kBlock = 512;
constexpr Index kGroup = 4;

using FloatVector = float __attribute__((vector_size(64)));
using IntVector = std::int32_t __attribute__((vector_size(64)));
using WordVector = std::uint32_t __attribute__((vector_size(64)));
using HalfVector = std::uint16_t __attribute__((vector_size(32)));

struct Floats {
    FloatVector v;
};
struct Mask {
    IntVector v;
};
struct Pairs {
    WordVector v;
};

EDGEDIT_SIMD Floats zeros() { return {FloatVector{}}; }
EDGEDIT_SIMD Floats broadcast(float value) { return {FloatVector{} + value}; }
EDGEDIT_SIMD Floats broadcast(const float* value) { return broadcast(*value); }

EDGEDIT_SIMD Floats operator+(Floats a, Floats b) { return {a.v + b.v}; }
EDGEDIT_SIMD Floats operator-(Floats a, Floats b) { return {a.v - b.v}; }
EDGEDIT_SIMD Floats operator*(Floats a, Floats b) { return {a.v * b.v}; }
EDGEDIT_SIMD Floats operator/(Floats a, Floats b) { return {a.v / b.v}; }

// Rounded twice, unlike in the other families: not every processor has the instruction.
EDGEDIT_SIMD Floats fma(Floats a, Floats b, Floats c) { return {a.v * b.v + c.v}; }
EDGEDIT_SIMD Floats fnma(Floats a, Floats b, Floats c) { return {c.v - a.v * b.v}; }

EDGEDIT_SIMD void add_product(Floats a, Floats b, Floats& sum) { sum = fma(a, b, sum); }

EDGEDIT_SIMD Floats max(Floats a, Floats b) { return {a.v > b.v ? a.v : b.v}; }
EDGEDIT_SIMD Floats min(Floats a, Floats b) { return {a.v < b.v ? a.v : b.v}; }
EDGEDIT_SIMD Floats abs(Floats a) { return {(FloatVector)((WordVector)a.v & 0x7fffffffu)}; }

EDGEDIT_SIMD Floats round(Floats a) {
    const FloatVector magic = (FloatVector{} + 8388608.0f); // 2^23: from here on floats have no fraction
    const FloatVector size = abs(a).v, rounded = (size + magic) - magic;
    const WordVector sign = (WordVector)a.v & 0x80000000u;
    return {size < magic ? (FloatVector)((WordVector)rounded | sign) : a.v};
}

EDGEDIT_SIMD Floats reciprocal(Floats a) { return broadcast(1.0f) / a; }

EDGEDIT_SIMD Floats power_of_two(Floats n) {
    return {(FloatVector)((__builtin_convertvector(n.v, IntVector) + 127) << 23)};
}

EDGEDIT_SIMD Mask less(Floats a, Floats b) { return {a.v < b.v}; }
EDGEDIT_SIMD Floats select(Mask mask, Floats yes, Floats no) { return {mask.v ? yes.v : no.v}; }

EDGEDIT_SIMD WordVector words_of(Floats a) { return (WordVector)a.v; }

EDGEDIT_SIMD Floats widen_halves(HalfVector halves, BF16) {
    return {(FloatVector)(__builtin_convertvector(halves, WordVector) << 16)};
}
EDGEDIT_SIMD Floats widen_halves(HalfVector halves, F16) { // as `widen` does it
    const WordVector bits = __builtin_convertvector(halves, WordVector);
    const FloatVector scaled = (FloatVector)((bits & 0x7fffu) << 13) * 0x1p112f;
    const WordVector special = (WordVector)(scaled >= 65536.0f) & 0x7f800000u;
    return {(FloatVector)((WordVector)scaled | special | ((bits & 0x8000u) << 16))};
}

EDGEDIT_SIMD HalfVector narrow_to_halves(Floats a, BF16) {
    const WordVector bits = words_of(a);
    const WordVector rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const WordVector result = a.v == a.v ? rounded : (bits >> 16) | 64u;
    return __builtin_convertvector(result, HalfVector);
}
EDGEDIT_SIMD HalfVector narrow_to_halves(Floats a, F16) {
    const WordVector bits = words_of(a), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    const WordVector normal = (size + 0xc8000fffu + ((size >> 13) & 1u)) >> 13;
    const WordVector denormal = words_of({(FloatVector)size + 0.5f}) - bits_of(0.5f); // the addition rounds
    const WordVector nan = 0x7e00u | ((size >> 13) & 0x3ffu);
    const WordVector finite = size < 0x38800000u ? denormal : normal;
    const WordVector large = size > 0x7f800000u ? nan : (WordVector{} + 0x7c00u);
    return __builtin_convertvector(sign | (size < 0x47800000u ? finite : large), HalfVector);
}

template <typename Vector> EDGEDIT_SIMD Vector load_vector(const void* from, std::size_t nbytes = sizeof(Vector)) {
    Vector vector{};
    std::memcpy(&vector, from, nbytes);
    return vector;
}

EDGEDIT_SIMD Floats load(const float* from) { return {load_vector<FloatVector>(from)}; }
template <typename Half> EDGEDIT_SIMD Floats load(const Half* from) {
    return widen_halves(load_vector<HalfVector>(from), Half{});
}

EDGEDIT_SIMD Floats load_first(const float* from, Index count) {
    return {load_vector<FloatVector>(from, static_cast<std::size_t>(count) * sizeof(float))};
}
template <typename Half> EDGEDIT_SIMD Floats load_first(const Half* from, Index count) {
    return widen_halves(load_vector<HalfVector>(from, static_cast<std::size_t>(count) * sizeof(Half)), Half{});
}

EDGEDIT_SIMD void store_first(float* to, Floats a, Index count) {
    std::memcpy(to, &a.v, static_cast<std::size_t>(count) * sizeof(float));
}
template <typename Half> EDGEDIT_SIMD void store_first(Half* to, Floats a, Index count) {
    const HalfVector halves = narrow_to_halves(a, Half{});
    std::memcpy(to, &halves, static_cast<std::size_t>(count) * sizeof(Half));
}
template <typename Element> EDGEDIT_SIMD void store(Element* to, Floats a) { store_first(to, a, kLanes); }

EDGEDIT_SIMD Pairs load_pairs(const BF16* from) { return {load_vector<WordVector>(from)}; }
EDGEDIT_SIMD Pairs broadcast_pair(const BF16* from) {
    std::uint32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return {WordVector{} + pair};
}
EDGEDIT_SIMD Pairs broadcast_single(const BF16* from) { return {WordVector{} + std::uint32_t{from->bits}}; }

/// As vdpbf16ps for normal numbers: products of bf16 are exact, so that rounding the sums alone is one rounding each.
EDGEDIT_SIMD void add_product(Pairs a, Pairs b, Floats& sum) {
    const FloatVector odd = (FloatVector)(a.v & 0xffff0000u) * (FloatVector)(b.v & 0xffff0000u);
    const FloatVector even = (FloatVector)(a.v << 16) * (FloatVector)(b.v << 16);
    sum.v = (sum.v + odd) + even;
}

EDGEDIT_SIMD float reduce_add(Floats a) {
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) a.v[lane] += a.v[lane + half];
    return a.v[0];
}
EDGEDIT_SIMD float reduce_max(Floats a) {
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) a.v[lane] = a.v[lane] > a.v[lane + half] ? a.v[lane] : a.v[lane + half];
    return a.v[0];
}

EDGEDIT_SIMD void transpose(Floats (&rows)[kLanes]) {
    float elements[kLanes][kLanes], transposed[kLanes][kLanes];
    std::memcpy(elements, rows, sizeof elements);
    for (int i = 0; i < kLanes; ++i)
        for (int j = 0; j < kLanes; ++j) transposed[j][i] = elements[i][j];
    std::memcpy(rows, transposed, sizeof transposed);
}

EDGEDIT_SIMD void prefetch(const void* at) { __builtin_prefetch(at); }

} // namespace
} // namespace edgedit::kernels
