// Panels of quantised weights as integers.
#pragma once

#include "kernels/impl/panel.hpp"
#include "kernels/impl/quant_decode.hpp"
#include "kernels/impl/quant_lanes.hpp"

namespace edgedit::kernels {
namespace {

/// kElements inner elements of a panel: weight = scale * value + offset. The offsets are those of 32 elements, so that
/// shorter blocks come without.
template <typename P, Index kElements> struct alignas(64) Int8Block {
    static constexpr Index kSteps = kElements / P::kStep;
    static constexpr bool kHasOffsets = kElements == kShortBlock;
    typename P::Weight values[kSteps][kPanel][P::kStep];
    std::int32_t starts[kPanel]; ///< of the sums
    float scales[kPanel];
    float offsets[kHasOffsets ? kPanel : 1];
};

/// What is taken from the values of a type to have them around zero.
inline int centre_of(Type type) { return type == Type::q4_k ? 8 : type == Type::q5_k ? 16 : 0; }

/// Four neighbours of kLanes columns, as one step or as two steps of two.
template <typename P>
EDGEDIT_SIMD void store_quads(Ints quads, typename P::Weight (*steps)[kPanel][P::kStep], Index column) {
    if constexpr (P::kStep == 4) {
        std::memcpy(steps[0][column], &quads, sizeof quads);
    } else {
        EDGEDIT_UNROLL
        for (int i = 0; i < 2; ++i) {
            const Ints pairs = (byte_of(quads, 2 * i) & 0xffff) | byte_of(quads, 2 * i + 1) << 16;
            std::memcpy(steps[i][column], &pairs, sizeof pairs);
        }
    }
}

/// Sums over the weights for activations of 0, which are stored as P::kBias, negated.
template <typename P, Index kElements> EDGEDIT_SIMD void set_starts(Int8Block<P, kElements>& block) {
    if constexpr (P::kBias != 0) {
        typename P::Activation nothing[P::kStep];
        for (auto& value : nothing) value = P::kBias;
        const auto row = P::broadcast_row(nothing);
        for (Index column = 0; column < kPanel; column += kLanes) {
            typename P::Sums sums{};
            for (const auto& step : block.values) sums = P::add(row, P::load_columns(step[column]), sums);
            P::store_negated(block.starts + column, sums);
        }
    }
}

template <typename P, Index kElements>
void fill_int8_blocks(const Quants& quants, Index count, int centre, Int8Block<P, kElements>* blocks) {
    using Bytes = std::uint8_t __attribute__((vector_size(4 * kLanes)));
    constexpr Index kQuads = kElements / 4;
    transpose_panel(
        kPanel, count / 4,
        [&](Index column, Index quad) { return load_quads(quants.values[column] + 4 * quad); },
        [=](Index quad, Index column, Floats quads) {
            const Bytes centred = lanes_as<Bytes>(quads) - static_cast<std::uint8_t>(centre);
            auto* steps = blocks[quad / kQuads].values + quad % kQuads * (4 / P::kStep);
            store_quads<P>(lanes_as<Ints>(centred), steps, column);
        });
    for (Index i = 0; i < count / kElements; ++i) {
        Int8Block<P, kElements>& block = blocks[i];
        const auto& scales = quants.scales[i * (kElements / 16)];
        std::memcpy(block.scales, scales, sizeof block.scales);
        if constexpr (block.kHasOffsets)
            for (Index column = 0; column < kPanel; ++column)
                block.offsets[column] = scales[column] * static_cast<float>(centre) - quants.minima[i][column];
        set_starts(block);
    }
}

/// Inner elements [begin, end) of a panel, whole blocks of its type.
template <typename P, Index kElements>
void expand_int8_blocks(const Weight& weight, Index panel, Index begin, Index end, Int8Block<P, kElements>* blocks) {
    const DecodeBlocks decode_blocks = decode_blocks_of(weight.type);
    Quants quants;
    for (Index chunk = begin; chunk < end; chunk += kQuantChunk) {
        const Index count = smaller(kQuantChunk, end - chunk);
        decode_blocks(weight, panel, chunk, count, quants);
        fill_int8_blocks(quants, count, centre_of(weight.type), blocks + (chunk - begin) / kElements);
    }
}

} // namespace
} // namespace edgedit::kernels
