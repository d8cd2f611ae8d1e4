// Panels of floats or bf16 out of the blocks of quantised weights.
#pragma once

#include "kernels/impl/panel.hpp"
#include "kernels/impl/quant_decode.hpp"
#include "kernels/impl/quant_lanes.hpp"
#include "kernels/scratch.hpp"

namespace edgedit::kernels {
namespace {

/// To the nearest bf16, in the upper half of each lane.
EDGEDIT_SIMD Words rounded_to_bf16(Floats values) {
    const auto bits = lanes_as<Words>(values);
    return bits + (((bits >> 16) & 1u) + 0x7fffu);
}

EDGEDIT_SIMD void store_steps(const Floats (&values)[4], float* panel) {
    EDGEDIT_UNROLL
    for (int i = 0; i < 4; ++i) store(panel + i * kPanel, values[i]);
}

EDGEDIT_SIMD void store_steps(const Floats (&values)[4], BF16* panel) {
    EDGEDIT_UNROLL
    for (int pair = 0; pair < 2; ++pair) {
        const Words even = rounded_to_bf16(values[2 * pair]), odd = rounded_to_bf16(values[2 * pair + 1]);
        const Words both = (even >> 16) | (odd & 0xffff0000u);
        std::memcpy(panel + pair * kPanel * 2, &both, sizeof both);
    }
}

/// The values of `count` inner elements as a panel; all products but those of q6_k are exact, so that rounding the
/// difference rounds as ggml does, which takes no minimum from those.
template <typename Element> void expand_quants(const Quants& quants, Index count, Element* panel) {
    constexpr Index kStep = Products<Element>::kStep;
    transpose_panel(
        kPanel, count / 4,
        [&](Index column, Index quad) { return load_quads(quants.values[column] + 4 * quad); },
        [=, &quants](Index quad, Index column, Floats quads) {
            const auto bytes = lanes_as<Ints>(quads);
            const Floats scale = load(quants.scales[quad / 4] + column);
            const Floats minimum = load(quants.minima[quad / 8] + column);
            Floats values[4];
            EDGEDIT_UNROLL
            for (int i = 0; i < 4; ++i) values[i] = to_floats(byte_of(bytes, i)) * scale - minimum;
            store_steps(values, panel + quad * 4 * kPanel + column * kStep);
        });
}

/// As `expand_blocks`, with ggml's own decoder.
template <typename Element>
void expand_any_blocks(const Weight& weight, Index panel, Index begin, Index end, Element* expanded) {
    constexpr Index kStep = Products<Element>::kStep;
    const Index count = end - begin, columns = smaller(kPanel, weight.columns - panel * kPanel);
    auto* values = static_cast<float*>(scratch(Scratch::values, sizeof(float) * kPanel * kBlock));
    for (Index column = 0; column < columns; ++column) {
        const auto* row = static_cast<const char*>(weight.data) + (panel * kPanel + column) * weight.row_nbytes;
        weight.to_float(row + weight.row_nbytes * begin / weight.inner, values + column * count, count);
    }
    auto* slots = reinterpret_cast<float*>(expanded);
    transpose_panel(
        columns, ceil_div(count, kStep),
        [=](Index column, Index step) {
            return load_steps<Element>(values + column * count + step * kStep, count - step * kStep);
        },
        [=](Index step, Index column, Floats steps) { store(slots + step * kPanel + column, steps); });
}

/// Inner elements [begin, end) of a panel of a quantised weight, exactly as ggml decodes them, in the micro-kernel's
/// form. `begin` is a multiple of kBlock, and `end` at most kBlock further.
template <typename Element>
void expand_blocks(const Weight& weight, Index panel, Index begin, Index end, Element* expanded) {
    static_assert(kBlock % kQuantChunk == 0);
    const DecodeBlocks decode_blocks = decode_blocks_of(weight.type);
    if (decode_blocks == nullptr) return expand_any_blocks(weight, panel, begin, end, expanded);
    Quants quants;
    for (Index chunk = begin; chunk < end; chunk += kQuantChunk) {
        const Index count = smaller(kQuantChunk, end - chunk);
        decode_blocks(weight, panel, chunk, count, quants);
        expand_quants(quants, count, expanded + (chunk - begin) * kPanel);
    }
}

} // namespace
} // namespace edgedit::kernels
