// The types of 16 bits and their conversion one by one; vectors convert alike, bit for bit.
//
// In an unnamed namespace, as all that is compiled for different processors: the linker must never take a copy made for
// a newer one into code that an older one runs.
#pragma once

#include <cstdint>
#include <cstring>

namespace edgedit {
namespace {

struct F16 {
    std::uint16_t bits;
};
struct BF16 {
    std::uint16_t bits;
};

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

inline void narrow(float value, float& to) { to = value; }

inline void narrow(float value, BF16& to) {
    const std::uint32_t bits = bits_of(value);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to.bits = static_cast<std::uint16_t>(nan ? (bits >> 16) | 64u : rounded);
}

inline void narrow(float value, F16& to) {
    const std::uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000u, size = bits & 0x7fffffffu;
    const std::uint32_t normal = (size + 0xc8000fffu + ((size >> 13) & 1u)) >> 13;
    const std::uint32_t denormal = bits_of(float_of(size) + 0.5f) - bits_of(0.5f); // the addition rounds
    const std::uint32_t nan = 0x7e00u | ((size >> 13) & 0x3ffu);
    const std::uint32_t finite = size < 0x38800000u ? denormal : normal;
    const std::uint32_t large = size > 0x7f800000u ? nan : 0x7c00u;
    to.bits = static_cast<std::uint16_t>(sign | (size < 0x47800000u ? finite : large));
}

} // namespace
} // namespace edgedit
