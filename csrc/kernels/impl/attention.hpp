// Attention in blocks: softmax(scale Q K^T + mask) V without ever holding a whole row of scores.
#pragma once

#include "kernels/impl/attention_group.hpp"
#include "kernels/impl/split.hpp"

namespace edgedit::kernels {
namespace {

/// The thread's part of all tiles of queries of all heads, in groups.
template <typename Element> inline void attend(const AttentionProblem& problem, int thread, int num_threads) {
    const Index tiles = ceil_div(problem.queries, kTileRows);
    const Range part = part_of(problem.batch * problem.heads * tiles, thread, num_threads);
    const Index capacity = QueryGroup<Element>::capacity(problem.head_dim);
    QueryGroup<Element> group(problem, smaller(capacity, smaller(tiles, part.end - part.begin)));
    for (Index tile = part.begin; tile < part.end;) {
        const Index item = tile / tiles, first = tile % tiles, left = smaller(part.end - tile, tiles - first);
        const Index count = ceil_div(left, ceil_div(left, capacity)); // groups of about the same size
        group.attend(item / problem.heads, item % problem.heads, first * kTileRows,
                     smaller(count * kTileRows, problem.queries - first * kTileRows));
        tile += count;
    }
}

void attention(const AttentionProblem& problem, int thread, int num_threads) {
#if EDGEDIT_HAS_PAIRS
    if (problem.compute == Compute::bf16) return attend<BF16>(problem, thread, num_threads);
#endif
    attend<float>(problem, thread, num_threads);
}

} // namespace
} // namespace edgedit::kernels
