// The softmax of attention, online [Milakov and Gimelshein 2018]: keys come in blocks, and what a query has summed up
// so far is rescaled whenever a block raises its highest score.
#pragma once

#include "kernels/micro.hpp"

namespace edgedit::kernels {
namespace {

/// Where a highest score begins: from -inf, no score of -inf could be subtracted.
constexpr float kLowestFloat = -3.40282347e+38f;

/// e^x within 1.5e-7 for x <= 0 or barely above; exactly 0 from -88 down.
EDGEDIT_SIMD Floats exp_of_negative(Floats x) {
    x = max(broadcast(-88.0f), x);
    const Floats n = round(x * broadcast(1.44269504f));
    const Floats r = fnma(n, broadcast(0.693147181f), x); // off by 2e-9 n, where the result is 2^n
    Floats p = broadcast(0.008312501944601536f);          // minimax on [-ln 2 / 2, ln 2 / 2]
    p = fma(p, r, broadcast(0.041890330612659454f));
    p = fma(p, r, broadcast(0.16667115688323975f));
    p = fma(p, r, broadcast(0.499992311000824f));
    p = fma(p, r, broadcast(1.0f));
    p = fma(p, r, broadcast(1.0f));
    return p * power_of_two(n);
}

struct NoMask {
    EDGEDIT_SIMD Floats at(Index) const { return zeros(); }
    EDGEDIT_SIMD Floats first_at(Index, Index) const { return zeros(); }
};

template <typename Element> struct AdditiveMask {
    const Element* values; // of a query, one per key

    EDGEDIT_SIMD Floats at(Index key) const { return load(values + key); }
    EDGEDIT_SIMD Floats first_at(Index key, Index count) const { return load_first(values + key, count); }
};

/// The highest of `count` masked scores, scale score + mask; whole vectors of scores can be read.
template <typename Mask>
inline float highest_score(const float* scores, Index count, float scale, const Mask& mask) {
    const Floats factor = broadcast(scale);
    Floats highest = broadcast(kLowestFloat);
    Index key = 0;
    for (; key + kLanes <= count; key += kLanes) highest = max(highest, fma(load(scores + key), factor, mask.at(key)));
    if (key < count) {
        float rest[kLanes];
        store(rest, fma(load(scores + key), factor, mask.first_at(key, count - key)));
        for (Index lane = count - key; lane < kLanes; ++lane) rest[lane] = kLowestFloat;
        highest = max(highest, load(rest));
    }
    return reduce_max(highest);
}

/// The weights exp(masked score - highest), in whole vectors, and their sum. They may take the place of the scores.
template <typename Mask, typename Weight>
inline float weigh_row(const float* scores, Index count, float scale, const Mask& mask, float highest,
                       Weight* weights) {
    const Floats factor = broadcast(scale), reference = broadcast(highest);
    Floats sum = zeros();
    Index key = 0;
    for (; key + kLanes <= count; key += kLanes) {
        const Floats weight = exp_of_negative(fma(load(scores + key), factor, mask.at(key)) - reference);
        store(weights + key, weight);
        sum = sum + weight;
    }
    if (key < count) {
        const Floats score = fma(load(scores + key), factor, mask.first_at(key, count - key));
        const Floats weight = exp_of_negative(score - reference);
        store(weights + key, weight);
        float rest[kLanes];
        store(rest, weight);
        sum = sum + load_first(rest, count - key);
    }
    return reduce_add(sum);
}

/// Turn a tile's scores of `count` more keys into weights; both have `stride` elements from row to row, and `masks` one
/// mask per row. `highest` and `totals` are what the rows have seen so far. The factors are for what has been summed up
/// with earlier weights.
template <typename Mask, typename Weight>
inline void weigh_tile(int num_rows, Index count, float scale, const Mask* masks, const float* scores, Weight* weights,
                       Index stride, float* highest, float* totals, float* factors) {
    float found[kLanes] = {}, sums[kLanes] = {};
    for (int r = 0; r < num_rows; ++r) found[r] = highest_score(scores + r * stride, count, scale, masks[r]);
    const Floats before = load_first(highest, num_rows), after = max(before, load(found));
    store_first(highest, after, num_rows);
    for (int r = 0; r < num_rows; ++r)
        sums[r] = weigh_row(scores + r * stride, count, scale, masks[r], highest[r], weights + r * stride);
    const Floats factor = exp_of_negative(before - after);
    store(factors, factor);
    store_first(totals, fma(load_first(totals, num_rows), factor, load(sums)), num_rows);
}

} // namespace
} // namespace edgedit::kernels
