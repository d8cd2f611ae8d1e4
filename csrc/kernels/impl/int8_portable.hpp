// Products of integers in plain vectors: what int8_avx512.hpp computes.
#pragma once

#include "kernels/simd_portable.hpp"

namespace edgedit::kernels {
namespace {

struct ByteProducts {
    static constexpr Index kStep = 4;
    static constexpr int kBias = 128;
    using Weight = std::int8_t;
    using Activation = std::uint8_t;
    struct Operand {
        WordVector v;
    };
    struct Sums {
        IntVector v;
    };
    static EDGEDIT_SIMD void store_activations(const Floats (&integers)[2], Activation* to) {
        for (Index i = 0; i < 2 * kLanes; ++i)
            to[i] = static_cast<Activation>(static_cast<std::int32_t>(integers[i / kLanes].v[i % kLanes]) + kBias);
    }
    static EDGEDIT_SIMD Operand broadcast_row(const Activation* a) {
        std::uint32_t quad;
        std::memcpy(&quad, a, sizeof quad);
        return {WordVector{} + quad};
    }
    static EDGEDIT_SIMD Operand load_columns(const Weight* w) { return {load_vector<WordVector>(w)}; }
    static EDGEDIT_SIMD Sums load_sums(const std::int32_t* from) { return {load_vector<IntVector>(from)}; }
    static EDGEDIT_SIMD void store_negated(std::int32_t* to, Sums sums) {
        const IntVector negated = -sums.v;
        std::memcpy(to, &negated, sizeof negated);
    }
    static EDGEDIT_SIMD Sums add(Operand row, Operand columns, Sums sums) {
        for (std::uint32_t bit = 0; bit < 32; bit += 8) {
            const auto activations = (IntVector)((row.v >> bit) & 255u);
            sums.v += activations * ((IntVector)(columns.v << (24 - bit)) >> 24);
        }
        return sums;
    }
    static EDGEDIT_SIMD Floats to_floats(Sums sums) { return {__builtin_convertvector(sums.v, FloatVector)}; }
};
using WideProducts = ByteProducts;

} // namespace
} // namespace edgedit::kernels
