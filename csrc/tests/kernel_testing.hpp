// What the tests of kernels share: the families that can run here, reproducible values, and numbers of 16 bits, made
// without the code under test.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "kernels/kernels.hpp"

namespace edgedit::kernels {

inline std::vector<const Kernels*> usable_kernels() {
    std::vector<const Kernels*> usable;
    for (const char* name : {"avx512", "avx2", "portable"})
        if (const Kernels* kernels = find(name)) usable.push_back(kernels);
    return usable;
}

constexpr std::int64_t itemsize(DType type) { return type == DType::f32 ? 4 : 2; }

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Values for tests: each of them is a multiple of 1/32 below 4, which f16 and bf16 hold exactly, unless it is to
/// fill f32.
class Values {
public:
    explicit Values(unsigned seed) : generator_(seed) {}

    float next(DType type) {
        if (type == DType::f32) return normal_(generator_);
        return static_cast<float>(static_cast<int>(generator_() % 255) - 127) / 32;
    }

    std::int64_t below(std::int64_t count) {
        return static_cast<std::int64_t>(generator_() % static_cast<std::uint64_t>(count));
    }

    template <typename Choice> Choice pick(std::initializer_list<Choice> choices) {
        return choices.begin()[below(static_cast<std::int64_t>(choices.size()))];
    }

private:
    std::mt19937_64 generator_;
    std::normal_distribution<float> normal_;
};

/// `value`, which the type holds exactly, or an infinity.
inline void write(void* to, DType type, float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (type == DType::f32) {
        std::memcpy(to, &bits, sizeof bits);
        return;
    }
    const std::uint32_t exponent = bits >> 23 & 255;
    std::uint32_t half = bits >> 16;
    if (type == DType::f16 && exponent == 0) half &= 0x8000u;
    if (type == DType::f16 && exponent == 255) half = (half & 0x8000u) | 0x7c00u;
    if (type == DType::f16 && exponent > 0 && exponent < 255)
        half = (half & 0x8000u) | (exponent - 112) << 10 | (bits >> 13 & 0x3ffu);
    std::memcpy(to, &half, 2); // little-endian
}

inline float read(const void* from, DType type) {
    if (type == DType::f16) {
        std::uint16_t half;
        std::memcpy(&half, from, sizeof half);
        const int exponent = half >> 10 & 31, fraction = half & 1023;
        const double size = exponent == 0    ? std::ldexp(fraction, -24)
                            : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                             : std::ldexp(fraction + 1024, exponent - 25);
        return static_cast<float>(half & 0x8000 ? -size : size);
    }
    std::uint32_t bits = 0;
    if (type == DType::f32)
        std::memcpy(&bits, from, 4);
    else
        std::memcpy(reinterpret_cast<char*>(&bits) + 2, from, 2);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

} // namespace edgedit::kernels
