// Layouts of ggml's blocks of quantised weights, as far as they have code of their own here. All but q4_0 and q8_0 hold
// 256 elements, in parts with scales of 6 or 8 bits.
#pragma once

#include "kernels/impl/elements.hpp"

namespace edgedit::kernels {
namespace {

/// Elements of the shortest block, which is also what activations in int8 share a scale over.
constexpr Index kShortBlock = 32;

/// scale * (nibble - 8). Byte i holds element i in its low and element i + 16 in its high half.
struct BlockQ4_0 {
    static constexpr Index kElements = 32;
    F16 scale;
    std::uint8_t nibbles[16];
};
static_assert(sizeof(BlockQ4_0) == 18);

/// scale * quant.
struct BlockQ8_0 {
    static constexpr Index kElements = 32;
    F16 scale;
    std::int8_t quants[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

/// scale * part scale * nibble - minimum * part minimum, in 8 parts of 32. Bytes 32 j to 32 j + 31 hold part 2 j in
/// their low and part 2 j + 1 in their high halves.
struct BlockQ4K {
    static constexpr Index kElements = 256;
    F16 scale;
    F16 minimum;
    std::uint8_t part_scales[12]; ///< `unpack_six_bits`
    std::uint8_t nibbles[128];
};
static_assert(sizeof(BlockQ4K) == 144);

/// As BlockQ4K with a fifth bit: bit p of byte i belongs to element i of part p.
struct BlockQ5K {
    static constexpr Index kElements = 256;
    F16 scale;
    F16 minimum;
    std::uint8_t part_scales[12];
    std::uint8_t high_bits[32];
    std::uint8_t nibbles[128];
};
static_assert(sizeof(BlockQ5K) == 176);

/// scale * part scale * (quant - 32), in 16 parts of 16. Each half of the block is 4 runs of 32 elements. Their lower
/// four bits are the low halves of 32 bytes, then of 32 more, then the high halves of both; their upper two bits are
/// two bits each of 32 bytes, from the lowest up.
struct BlockQ6K {
    static constexpr Index kElements = 256;
    std::uint8_t nibbles[128];
    std::uint8_t high_bits[64];
    std::int8_t part_scales[16];
    F16 scale;
};
static_assert(sizeof(BlockQ6K) == 210);

/// The 8 scales and 8 minima of the parts of a BlockQ4K or BlockQ5K: the first four of each in the low six bits of
/// bytes 0 to 7, whose upper two bits are the upper two of the last four; their low halves are in bytes 8 to 11.
inline void unpack_six_bits(const std::uint8_t (&packed)[12], std::uint8_t (&scales)[8], std::uint8_t (&minima)[8]) {
    for (int i = 0; i < 4; ++i) {
        scales[i] = packed[i] & 63;
        minima[i] = packed[4 + i] & 63;
        scales[4 + i] = static_cast<std::uint8_t>((packed[8 + i] & 15) | (packed[i] >> 6) << 4);
        minima[4 + i] = static_cast<std::uint8_t>((packed[8 + i] >> 4) | (packed[4 + i] >> 6) << 4);
    }
}

} // namespace
} // namespace edgedit::kernels
