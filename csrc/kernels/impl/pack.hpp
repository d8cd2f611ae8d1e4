// Weights in memory as panels, one after another. A family that multiplies halves as floats keeps them as halves,
// [inner][kPanel], and widens them when it gets to them.
#pragma once

#include "kernels/impl/panel.hpp"

namespace edgedit::kernels {
namespace {

/// The panels of rows [first, first + count) of `Source`; one step of them is stored as kPanel `Slot`s.
template <typename Element, typename Slot, typename Source>
void pack_rows(Index inner, Index first, Index count, const void* rows, void* packed) {
    constexpr Index kStep = Products<Element>::kStep;
    const Index steps = ceil_div(inner, kStep);
    for (Index column = 0; column < count; column += kPanel) {
        const Source* source = static_cast<const Source*>(rows) + column * inner;
        Slot* panel = static_cast<Slot*>(packed) + (first + column) * steps;
        transpose_panel(
            count - column, steps,
            [=](Index i, Index step) {
                return load_steps<Element>(source + i * inner + step * kStep, inner - step * kStep);
            },
            [=](Index step, Index i, Floats values) { store(panel + step * kPanel + i, values); });
    }
}

std::int64_t packed_nbytes(Type type, std::int64_t columns, std::int64_t inner) {
    if (!is_packed(type)) return 0;
    const Index padded = ceil_div(columns, kPanel) * kPanel;
    if (type == Type::f32) return padded * inner * Index{sizeof(float)};
    return padded * (EDGEDIT_HAS_PAIRS ? inner + inner % 2 : inner) * Index{sizeof(BF16)};
}

void pack(Type type, std::int64_t, std::int64_t inner, std::int64_t first, std::int64_t count, const void* rows,
          void* packed) {
    if (type == Type::f32) return pack_rows<float, float, float>(inner, first, count, rows, packed);
#if EDGEDIT_HAS_PAIRS
    if (type == Type::f16) return pack_rows<BF16, float, F16>(inner, first, count, rows, packed);
    return pack_rows<BF16, float, BF16>(inner, first, count, rows, packed);
#else
    if (type == Type::f16) return pack_rows<float, F16, F16>(inner, first, count, rows, packed);
    return pack_rows<float, BF16, BF16>(inner, first, count, rows, packed);
#endif
}

} // namespace
} // namespace edgedit::kernels
