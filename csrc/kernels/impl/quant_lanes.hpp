// The lanes of vectors as integers.
#pragma once

#include "kernels/impl/elements.hpp"

namespace edgedit::kernels {
namespace {

/// kLanes lanes of 32 bits as integers.
using Ints = std::int32_t __attribute__((vector_size(4 * kLanes)));
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));

template <typename To, typename From> EDGEDIT_SIMD To lanes_as(From lanes) {
    static_assert(sizeof(To) == sizeof(From));
    To same;
    std::memcpy(&same, &lanes, sizeof same);
    return same;
}

/// Four neighbours to a lane, in the guise of floats.
EDGEDIT_SIMD Floats load_quads(const std::int8_t* values) {
    Floats quads;
    std::memcpy(&quads, values, sizeof quads);
    return quads;
}

/// Byte `index` of every lane, with its sign.
EDGEDIT_SIMD Ints byte_of(Ints lanes, int index) { return (Ints)((Words)lanes << (24 - 8 * index)) >> 24; }

EDGEDIT_SIMD Floats to_floats(Ints lanes) {
    using Vector = float __attribute__((vector_size(4 * kLanes)));
    return lanes_as<Floats>(__builtin_convertvector(lanes, Vector));
}

} // namespace
} // namespace edgedit::kernels
