// Queries, keys and values of a head in the forms in which the micro-kernel multiplies them.
#pragma once

#include "kernels/impl/multiply_panels.hpp"
#include "kernels/impl/panel.hpp"

namespace edgedit::kernels {
namespace {

/// Rows of one head, bytes from token to token.
template <typename Source> struct TokenRows {
    const char* data;
    Index stride;

    const Source* operator[](Index token) const { return reinterpret_cast<const Source*>(data + token * stride); }
};

/// How far ahead to fetch rows into the caches: they stand far apart, which no processor foresees.
constexpr Index kRowsAhead = 8;

inline const char* token_row(const HeadsView& view, Index batch, Index head, Index token) {
    return static_cast<const char*>(view.data) + batch * view.batch_stride + head * view.head_stride +
           token * view.token_stride;
}

/// The tokens of one head of one batch from `first` on, handed to `use` in their type.
template <typename Use>
inline void with_rows(const HeadsView& view, Index batch, Index head, Index first, const Use& use) {
    const char* data = token_row(view, batch, head, first);
    switch (view.type) {
        case DType::f32: return use(TokenRows<float>{data, view.token_stride});
        case DType::f16: return use(TokenRows<F16>{data, view.token_stride});
        case DType::bf16: return use(TokenRows<BF16>{data, view.token_stride});
    }
}

template <typename Source> EDGEDIT_SIMD Floats load_up_to_vector(const Source* from, Index count) {
    return count < kLanes ? load_first(from, count) : load(from);
}

/// Rows one after another, row_stride(depth) elements from one to the next, filled up with zeros to whole steps.
template <typename Element, typename Source>
inline void pack_rows(const TokenRows<Source>& from, Index count, Index depth, Element* to) {
    for (Index row = 0; row < count; ++row, to += row_stride<Element>(depth)) {
        for (Index d = 0; d < depth; d += kLanes) {
            prefetch(from[row + kRowsAhead] + d);
            const Index left = depth - d;
            const Floats part = load_up_to_vector(from[row] + d, left);
            left < kLanes ? store_first(to + d, part, left) : store(to + d, part);
        }
        if (depth < padded_inner<Element>(depth)) to[depth] = Element{};
    }
}

/// Keys as the columns of panels, `panel_stride` elements from one to the next. They pass through `rows`, with room for
/// kPanel of them: in place, their lines may all fall into one set of the first-level cache.
template <typename Element, typename Source>
inline void pack_keys(const TokenRows<Source>& keys, Index count, Index depth, Element* rows, Element* panels,
                      Index panel_stride) {
    const Index steps = ceil_div(depth, Products<Element>::kStep);
    for (Index first = 0; first < count; first += kPanel, panels += panel_stride) {
        const Index columns = smaller(count - first, kPanel);
        pack_rows(TokenRows<Source>{keys.data + first * keys.stride, keys.stride}, columns, depth, rows);
        auto* slots = reinterpret_cast<float*>(panels);
        transpose_panel(
            columns, steps,
            [=](Index column, Index step) {
                return load(reinterpret_cast<const float*>(rows + column * row_stride<Element>(depth)) + step);
            },
            [=](Index step, Index column, Floats words) { store(slots + step * kPanel + column, words); });
    }
}

/// One step of a panel along the keys, which are its rows here: kLanes channels of a value, or of two, interleaved.
EDGEDIT_SIMD void store_step(float* step, Floats value, Floats) { store(step, value); }
#if EDGEDIT_HAS_PAIRS
EDGEDIT_SIMD void store_step(BF16* step, Floats first, Floats second) {
    BF16 halves[2][kLanes];
    store(halves[0], first);
    store(halves[1], second);
    for (Index lane = 0; lane < kLanes; ++lane) step[2 * lane] = halves[0][lane], step[2 * lane + 1] = halves[1][lane];
}
#endif

/// Values as the rows of panels of kPanel channels, `panel_stride` elements from one to the next; zeros beyond the last
/// channel, to the end of its vector.
template <typename Element, typename Source>
inline void pack_values(const TokenRows<Source>& values, Index count, Index depth, Element* panels,
                        Index panel_stride) {
    constexpr Index kStep = Products<Element>::kStep;
    for (Index value = 0; value < count; value += kStep)
        for (Index d = 0; d < depth; d += kLanes) {
            Element* step = panels + (d / kPanel) * panel_stride + value * kPanel + (d % kPanel) * kStep;
            prefetch(values[value + kRowsAhead] + d);
            const Floats first = load_up_to_vector(values[value] + d, depth - d);
            const bool is_last = value + kStep > count;
            store_step(step, first, is_last ? zeros() : load_up_to_vector(values[value + kStep - 1] + d, depth - d));
        }
}

} // namespace
} // namespace edgedit::kernels
