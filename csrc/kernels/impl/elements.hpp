// Element types and their conversion one by one; the vectors convert alike, bit for bit.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kernels.hpp"

namespace edgedit::kernels {
namespace {

using Index = std::int64_t;

struct F16 {
    std::uint16_t bits;
};
struct BF16 {
    std::uint16_t bits;
};

inline Index itemsize(DType type) { return type == DType::f32 ? 4 : 2; }

inline Index ceil_div(Index count, Index by) { return (count + by - 1) / by; }

inline Index smaller(Index a, Index b) { return a < b ? a : b; }

inline Index larger(Index a, Index b) { return a > b ? a : b; }

inline std::uint32_t bits_of(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float float_of(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline float widen(float value) { return value; }

inline float widen(BF16 value) { return float_of(static_cast<std::uint32_t>(value.bits) << 16); }

inline float widen(F16 value) {
    const std::uint32_t sign = (value.bits & 0x8000u) << 16;
    const float scaled = float_of((value.bits & 0x7fffu) << 13) * float_of(0x77800000u); // * 2^112: also denormals
    const std::uint32_t special = scaled >= 65536.0f ? 0x7f800000u : 0u;                 // infinity and NaN
    return float_of(bits_of(scaled) | special | sign);
}

} // namespace
} // namespace edgedit::kernels
