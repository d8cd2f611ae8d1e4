// Panels: kPanel columns of a weight side by side, in the form that the micro-kernel takes.
//
// Of float: [inner][kPanel]. Of BF16: [ceil(inner / 2)][kPanel][2], zeros beyond an odd inner. Columns that the last
// panel lacks are zeros.
#pragma once

#include "kernels/impl/elements.hpp"
#include "kernels/micro.hpp"

namespace edgedit::kernels {
namespace {

inline bool is_packed(Type type) { return type == Type::f32 || type == Type::f16 || type == Type::bf16; }

/// Whether a weight of `type` is multiplied as BF16; else as float.
inline bool is_multiplied_in_bf16(Type type) { return EDGEDIT_HAS_PAIRS != 0 && type != Type::f32; }

/// Inner elements that a panel has room for: whole steps.
template <typename Element> inline Index padded_inner(Index inner) {
    return ceil_div(inner, Products<Element>::kStep) * Products<Element>::kStep;
}

/// The first min(count, kLanes * kStep) elements of a row, zeros beyond, as kLanes steps of a panel: each step is 32
/// bits, a float or a pair of bf16, here in the guise of a float.
template <typename Element, typename Source> EDGEDIT_SIMD Floats load_steps(const Source* row, Index count) {
    if constexpr (Products<Element>::kStep == 1) {
        return count < kLanes ? load_first(row, count) : load(row);
    } else {
        Element steps[2 * kLanes] = {};
        if (count >= 2 * kLanes) {
            store(steps, load(row));
            store(steps + kLanes, load(row + kLanes));
        } else {
            const Index full = count < kLanes ? 0 : kLanes;
            if (full != 0) store(steps, load(row));
            store(steps + full, load_first(row + full, count - full));
        }
        Floats result;
        std::memcpy(&result, steps, sizeof result);
        return result;
    }
}

/// Turn up to kPanel rows of a weight into the columns of a panel. `load(column, step)` gives kLanes steps of a row;
/// `put(step, column, steps)` takes one step of kLanes columns.
template <typename Load, typename Put>
EDGEDIT_SIMD void transpose_panel(Index columns, Index steps, const Load& load, const Put& put) {
    for (Index column = 0; column < kPanel; column += kLanes)
        for (Index step = 0; step < steps; step += kLanes) {
            Floats block[kLanes];
            for (Index i = 0; i < kLanes; ++i) block[i] = column + i < columns ? load(column + i, step) : zeros();
            transpose(block);
            for (Index i = 0; i < smaller(kLanes, steps - step); ++i) put(step + i, column, block[i]);
        }
}

} // namespace
} // namespace edgedit::kernels
