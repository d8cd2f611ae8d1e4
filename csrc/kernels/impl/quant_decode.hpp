// From blocks to small integers with f32 scales, for a panel's columns at a time: the common ground of products in
// floating point and in int8.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/impl/quant_blocks.hpp"
#include "kernels/kernels.hpp"
#include "kernels/micro.hpp"

namespace edgedit::kernels {
namespace {

/// Inner elements that are decoded at a time: the longest block.
constexpr Index kQuantChunk = 256;

/// kQuantChunk inner elements of a panel: element = scale * value - minimum, exactly as ggml rounds it.
struct alignas(64) Quants {
    std::int8_t values[kPanel][kQuantChunk];
    float scales[kQuantChunk / 16][kPanel]; ///< of every 16 elements
    float minima[kQuantChunk / 32][kPanel]; ///< of every 32 elements
};

using Bytes16 = std::uint8_t __attribute__((vector_size(16)));
using Bytes32 = std::uint8_t __attribute__((vector_size(32)));

template <typename Bytes> EDGEDIT_SIMD Bytes load_bytes(const void* from) {
    Bytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return bytes;
}

template <typename Bytes> EDGEDIT_SIMD void store_bytes(std::int8_t* to, Bytes bytes) {
    std::memcpy(to, &bytes, sizeof bytes);
}

/// Of a damaged block it is the NaN without payload, which stays one when it is rounded to bf16.
inline float scale_of(F16 stored) {
    const float scale = widen(stored);
    return std::isnan(scale) ? std::numeric_limits<float>::quiet_NaN() : scale;
}

inline void set_part(Quants& quants, Index part, Index column, float scale, float minimum) {
    quants.scales[2 * part][column] = quants.scales[2 * part + 1][column] = scale;
    quants.minima[part][column] = minimum;
}

/// Put a block into the quants of a column, from part `part` of 32 elements on.
inline void decode(const BlockQ4_0& block, Quants& quants, Index part, Index column) {
    std::int8_t* values = quants.values[column] + 32 * part;
    const auto nibbles = load_bytes<Bytes16>(block.nibbles);
    store_bytes(values, (nibbles & 15) - 8);
    store_bytes(values + 16, (nibbles >> 4) - 8);
    set_part(quants, part, column, scale_of(block.scale), 0.0f);
}

inline void decode(const BlockQ8_0& block, Quants& quants, Index part, Index column) {
    store_bytes(quants.values[column] + 32 * part, load_bytes<Bytes32>(block.quants));
    set_part(quants, part, column, scale_of(block.scale), 0.0f);
}

template <typename Block> inline void decode_part_scales(const Block& block, Quants& quants, Index column) {
    const float scale = scale_of(block.scale), minimum = scale_of(block.minimum);
    std::uint8_t scales[8], minima[8];
    unpack_six_bits(block.part_scales, scales, minima);
    for (Index part = 0; part < 8; ++part)
        set_part(quants, part, column, scale * static_cast<float>(scales[part]),
                 minimum * static_cast<float>(minima[part]));
}

inline void decode(const BlockQ4K& block, Quants& quants, Index, Index column) {
    std::int8_t* values = quants.values[column];
    EDGEDIT_UNROLL
    for (int pair = 0; pair < 4; ++pair) {
        const auto nibbles = load_bytes<Bytes32>(block.nibbles + 32 * pair);
        store_bytes(values + 64 * pair, nibbles & 15);
        store_bytes(values + 64 * pair + 32, nibbles >> 4);
    }
    decode_part_scales(block, quants, column);
}

inline void decode(const BlockQ5K& block, Quants& quants, Index, Index column) {
    std::int8_t* values = quants.values[column];
    const auto high = load_bytes<Bytes32>(block.high_bits);
    EDGEDIT_UNROLL
    for (int pair = 0; pair < 4; ++pair) {
        const auto nibbles = load_bytes<Bytes32>(block.nibbles + 32 * pair);
        const Bytes32 bits = high >> static_cast<std::uint8_t>(2 * pair);
        store_bytes(values + 64 * pair, (nibbles & 15) | (bits & 1) << 4);
        store_bytes(values + 64 * pair + 32, (nibbles >> 4) | (bits & 2) << 3);
    }
    decode_part_scales(block, quants, column);
}

inline void decode(const BlockQ6K& block, Quants& quants, Index, Index column) {
    EDGEDIT_UNROLL
    for (int half = 0; half < 2; ++half) {
        std::int8_t* values = quants.values[column] + 128 * half;
        const auto first = load_bytes<Bytes32>(block.nibbles + 64 * half);
        const auto second = load_bytes<Bytes32>(block.nibbles + 64 * half + 32);
        const auto high = load_bytes<Bytes32>(block.high_bits + 32 * half);
        store_bytes(values, ((first & 15) | (high & 3) << 4) - 32);
        store_bytes(values + 32, ((second & 15) | ((high >> 2) & 3) << 4) - 32);
        store_bytes(values + 64, ((first >> 4) | ((high >> 4) & 3) << 4) - 32);
        store_bytes(values + 96, ((second >> 4) | (high >> 6) << 4) - 32);
    }
    const float scale = scale_of(block.scale);
    for (Index part = 0; part < 16; ++part)
        quants.scales[part][column] = scale * static_cast<float>(block.part_scales[part]);
    for (Index part = 0; part < 8; ++part) quants.minima[part][column] = 0.0f;
}

template <typename Block>
inline void decode_blocks(const Weight& weight, Index panel, Index begin, Index count, Quants& quants) {
    const Index columns = smaller(kPanel, weight.columns - panel * kPanel);
    const char* row = static_cast<const char*>(weight.data) + panel * kPanel * weight.row_nbytes;
    for (Index column = 0; column < columns; ++column, row += weight.row_nbytes) {
        const auto* blocks = reinterpret_cast<const Block*>(row) + begin / Block::kElements;
        for (Index i = 0; i < count / Block::kElements; ++i)
            decode(blocks[i], quants, i * (Block::kElements / 32), column);
    }
    for (Index column = columns; column < kPanel; ++column) {
        std::memset(quants.values[column], 0, sizeof quants.values[column]);
        for (auto& scales : quants.scales) scales[column] = 0.0f;
        for (auto& minima : quants.minima) minima[column] = 0.0f;
    }
}

using DecodeBlocks = void (*)(const Weight&, Index, Index, Index, Quants&);

/// Decodes inner elements [begin, begin + count) of a panel: whole blocks, at most kQuantChunk elements. Columns that
/// the panel lacks are zeros. Null for types without code here.
inline DecodeBlocks decode_blocks_of(Type type) {
    switch (type) {
        case Type::q4_0: return decode_blocks<BlockQ4_0>;
        case Type::q8_0: return decode_blocks<BlockQ8_0>;
        case Type::q4_k: return decode_blocks<BlockQ4K>;
        case Type::q5_k: return decode_blocks<BlockQ5K>;
        case Type::q6_k: return decode_blocks<BlockQ6K>;
        default: return nullptr;
    }
}

} // namespace
} // namespace edgedit::kernels
