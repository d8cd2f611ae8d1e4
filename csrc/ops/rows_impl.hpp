// The body of rows_portable.cpp and rows_avx2.cpp, which compile it for different processors. Everything stands in
// an unnamed namespace and no standard inline function is called: the linker must never take a copy made for a newer
// processor into code that an older one runs.
#include <cstring>

#include "halves.hpp"
#include "ops/rows.hpp"

#if EDGEDIT_AVX2
#include <immintrin.h>
#endif

namespace edgedit::ops {
namespace {

using Index = std::int64_t;

#if EDGEDIT_AVX2

inline __m256 load8(const float* from) { return _mm256_loadu_ps(from); }
inline __m256 load8(const F16* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline __m256 load8(const BF16* from) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

template <bool Streaming> inline void store8(float* to, __m256 value) {
    Streaming ? _mm256_stream_ps(to, value) : _mm256_storeu_ps(to, value);
}

template <bool Streaming> inline void store_halves(void* to, __m128i value) {
    Streaming ? _mm_stream_si128(static_cast<__m128i*>(to), value) : _mm_storeu_si128(static_cast<__m128i*>(to), value);
}

template <bool Streaming> inline void store8(F16* to, __m256 value) {
    store_halves<Streaming>(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

template <bool Streaming> inline void store8(BF16* to, __m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(64 << 16));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    store_halves<Streaming>(to, _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
}

template <bool Streaming, typename To, typename From> inline Index move_vectors(To* to, const From* from, Index count) {
    Index i = 0;
    for (; i + 32 <= count; i += 32) {
        const __m256 a = load8(from + i), b = load8(from + i + 8), c = load8(from + i + 16), d = load8(from + i + 24);
        store8<Streaming>(to + i, a);
        store8<Streaming>(to + i + 8, b);
        store8<Streaming>(to + i + 16, c);
        store8<Streaming>(to + i + 24, d);
    }
    for (; i + 8 <= count; i += 8) store8<Streaming>(to + i, load8(from + i));
    return i;
}

/// Bytes of a row of one type: no conversion may touch them (it would quieten signalling NaNs).
template <bool Streaming> inline Index move_vectors(char* to, const char* from, Index count) {
    const auto load = [from](Index i) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)); };
    const auto store = [to](Index i, __m256i value) {
        auto* at = reinterpret_cast<__m256i*>(to + i);
        Streaming ? _mm256_stream_si256(at, value) : _mm256_storeu_si256(at, value);
    };
    Index i = 0;
    for (; i + 128 <= count; i += 128) {
        const __m256i a = load(i), b = load(i + 32), c = load(i + 64), d = load(i + 96);
        store(i, a), store(i + 32, b), store(i + 64, c), store(i + 96, d);
    }
    for (; i + 32 <= count; i += 32) store(i, load(i));
    return i;
}

inline bool is_aligned(const void* pointer, std::uintptr_t to) {
    return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

void fence() { _mm_sfence(); }

#else

template <bool Streaming, typename To, typename From> inline Index move_vectors(To*, const From*, Index) { return 0; }

inline bool is_aligned(const void*, std::uintptr_t) { return true; }

void fence() {}

#endif

template <typename To, typename From, bool Streaming> void convert(void* target, const void* source, Index count) {
    auto* to = static_cast<To*>(target);
    const auto* from = static_cast<const From*>(source);
    const bool direct = Streaming && is_aligned(to, 8 * sizeof(To));
    Index i = direct ? move_vectors<true>(to, from, count) : move_vectors<false>(to, from, count);
    for (; i < count; ++i) narrow(widen(from[i]), to[i]);
}

template <Index Itemsize, bool Streaming> void copy(void* target, const void* source, Index count) {
    const Index nbytes = count * Itemsize;
    auto* to = static_cast<char*>(target);
    const auto* from = static_cast<const char*>(source);
    const Index done = Streaming && is_aligned(to, 32) ? move_vectors<true>(to, from, nbytes) : 0;
    if (done < nbytes) std::memcpy(to + done, from + done, static_cast<std::size_t>(nbytes - done));
}

template <typename To, bool Streaming> Move move_to(DType from) {
    switch (from) {
        case DType::f32: return &convert<To, float, Streaming>;
        case DType::f16: return &convert<To, F16, Streaming>;
        case DType::bf16: return &convert<To, BF16, Streaming>;
    }
    return nullptr;
}

template <bool Streaming> Move move_between(DType to, DType from) {
    if (to == from) return to == DType::f32 ? &copy<4, Streaming> : &copy<2, Streaming>;
    switch (to) {
        case DType::f32: return move_to<float, Streaming>(from);
        case DType::f16: return move_to<F16, Streaming>(from);
        case DType::bf16: return move_to<BF16, Streaming>(from);
    }
    return nullptr;
}

Move move(DType to, DType from, bool streaming) {
    return streaming ? move_between<true>(to, from) : move_between<false>(to, from);
}

// Sums run in lanes, which vectorise without leave to reorder additions, and lanes are added in double.

constexpr Index kLanes = 16;

template <typename Term> inline double sum(Index count, const Term& term) {
    float lanes[kLanes] = {};
    Index i = 0;
    for (; i + kLanes <= count; i += kLanes)
        for (Index lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
    double total = 0;
    for (const float lane : lanes) total += lane;
    for (; i < count; ++i) total += term(i);
    return total;
}

void rms_norm(float* x, const float* weight, Index count, float eps) {
    const double squares = sum(count, [x](Index i) { return x[i] * x[i]; });
    const float factor = 1.0f / __builtin_sqrtf(static_cast<float>(squares / static_cast<double>(count)) + eps);
    for (Index i = 0; i < count; ++i) x[i] = x[i] * factor * weight[i];
}

void rotate(float* x, const float* table, Index count) {
    for (Index i = 0; i + 1 < count; i += 2) {
        const float even = x[i], odd = x[i + 1], cosine = table[i], sine = table[i + 1];
        x[i] = even * cosine - odd * sine;
        x[i + 1] = even * sine + odd * cosine;
    }
}

void modulate(float* to, const float* x, const float* scale, const float* shift, Index count, float eps) {
    const auto mean = static_cast<float>(sum(count, [x](Index i) { return x[i]; }) / static_cast<double>(count));
    const double squares = sum(count, [x, mean](Index i) { return (x[i] - mean) * (x[i] - mean); });
    const float factor = 1.0f / __builtin_sqrtf(static_cast<float>(squares / static_cast<double>(count)) + eps);
    for (Index i = 0; i < count; ++i) to[i] = (x[i] - mean) * factor * (1.0f + scale[i]) + shift[i];
}

void gated_residual(float* to, const float* x, const float* gate, const float* update, Index count) {
    for (Index i = 0; i < count; ++i) to[i] = x[i] + gate[i] * update[i];
}

} // namespace
} // namespace edgedit::ops
