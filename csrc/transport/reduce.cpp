#include "transport/reduce.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace edgedit::transport {

namespace {

float f32_of_bits(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

std::uint32_t bits_of_f32(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

float from_f16(std::uint16_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu;
    const std::uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1f) return f32_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return f32_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    const float tiny = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -tiny : tiny;
}

/// Rounds to the nearest, ties to even.
std::uint16_t to_f16(float value) {
    const std::uint32_t bits = bits_of_f32(value);
    const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u); // 65520 and more
    if (magnitude < 0x38800000u) { // subnormal: adding 0.5 leaves the rounded count of 2^-24 in the last bits
        return static_cast<std::uint16_t>(sign | (bits_of_f32(f32_of_bits(magnitude) + 0.5f) - bits_of_f32(0.5f)));
    }
    const std::uint32_t odd = magnitude >> 13 & 1u;
    return static_cast<std::uint16_t>(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

float from_bf16(std::uint16_t half) { return f32_of_bits(static_cast<std::uint32_t>(half) << 16); }

std::uint16_t to_bf16(float value) {
    const std::uint32_t bits = bits_of_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <typename Value>
bool is_nan(Value value) {
    return value != value;
}

template <typename Value>
Value combine(Reduce reduce, Value a, Value b) {
    if (reduce == Reduce::sum) return a + b;
    if (is_nan(a)) return a;
    if (is_nan(b)) return b;
    return (reduce == Reduce::max ? a >= b : a <= b) ? a : b;
}

constexpr std::int64_t kRun = 1024; // elements whose totals stay in the nearest cache

/// `load` and `store` turn what is in memory into what is computed with.
template <typename Stored, typename Load, typename Store>
void reduce_as(const Reduction& how, const std::byte* parts, std::byte* result, const Load& load, const Store& store) {
    const Stored* values = reinterpret_cast<const Stored*>(parts);
    Stored* target = reinterpret_cast<Stored*>(result);
    decltype(load(values[0])) totals[kRun];
    for (std::int64_t begin = 0; begin < how.count; begin += kRun) {
        const std::int64_t count = std::min(kRun, how.count - begin);
        for (std::int64_t i = 0; i < count; ++i) totals[i] = load(values[begin + i]);
        for (int rank = 1; rank < how.ranks; ++rank) {
            const Stored* part = values + rank * how.count + begin;
            for (std::int64_t i = 0; i < count; ++i) totals[i] = combine(how.reduce, totals[i], load(part[i]));
        }
        for (std::int64_t i = 0; i < count; ++i) target[begin + i] = store(totals[i]);
    }
}

float same(float value) { return value; }

// Integers are added in 64 bits, so that an overflow wraps as it does in numpy.
std::int64_t widened(std::int32_t value) { return value; }
std::int32_t narrowed(std::int64_t value) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(value)); }

} // namespace

void reduce_in_order(const Reduction& how, const std::byte* parts, std::byte* result) {
    switch (how.element) {
    case Element::f32: return reduce_as<float>(how, parts, result, same, same);
    case Element::i32: return reduce_as<std::int32_t>(how, parts, result, widened, narrowed);
    case Element::f16: return reduce_as<std::uint16_t>(how, parts, result, from_f16, to_f16);
    case Element::bf16: return reduce_as<std::uint16_t>(how, parts, result, from_bf16, to_bf16);
    }
}

} // namespace edgedit::transport
