// Queries of one head, attended to together: a block of keys and values is packed, which then stays in the caches, and
// added to every query's sums; then the next.
#pragma once

#include "kernels/impl/attention_pack.hpp"
#include "kernels/impl/attention_softmax.hpp"
#include "kernels/scratch.hpp"

namespace edgedit::kernels {
namespace {

/// Keys between two rescalings of the sums. A constant: the last bits of results depend on it.
constexpr Index kKeyBlock = 128;

/// Memory for the queries of a group and for their sums. They are used once per block of keys and need no fast cache;
/// the more they are, the less it matters what the packing of keys takes.
constexpr Index kGroupNbytes = 2 << 20;
constexpr Index kMaxGroupTiles = 512;

template <typename Target> inline void store_scaled(Target* to, const float* from, Index count, float factor) {
    const Floats scale = broadcast(factor);
    Index at = 0;
    for (; at + kLanes <= count; at += kLanes) store(to + at, load(from + at) * scale);
    if (at < count) store_first(to + at, load_first(from + at, count - at) * scale, count - at);
}

/// Element is what is multiplied: float or BF16.
template <typename Element> class QueryGroup {
public:
    /// Tiles of queries that a group has room for.
    static Index capacity(Index head_dim) {
        const Index row_nbytes = row_stride<Element>(head_dim) * sizeof(Element) + row_stride<float>(head_dim) * 4;
        return smaller(kGroupNbytes / row_nbytes / kTileRows + 1, kMaxGroupTiles);
    }

    /// Takes memory for groups of at most `most_tiles`.
    QueryGroup(const AttentionProblem& problem, Index most_tiles)
        : p_(problem), query_stride_(row_stride<Element>(p_.head_dim)), sum_stride_(row_stride<float>(p_.head_dim)),
          key_panel_(padded_inner<Element>(p_.head_dim) * kPanel) {
        const Index most = most_tiles * kTileRows, key_elements = kKeyBlock / kPanel * key_panel_,
                    value_elements = ceil_div(p_.head_dim, kPanel) * kValuePanel;
        queries_ = take<Element>(Scratch::rows, most * query_stride_);
        keys_ = take<Element>(Scratch::panels, key_elements + value_elements + kPanel * query_stride_);
        values_ = keys_ + key_elements;
        staged_ = values_ + value_elements;
        sums_ = take<float>(Scratch::sums, most * (sum_stride_ + 2));
        highest_ = sums_ + most * sum_stride_;
        totals_ = highest_ + most;
        scores_ = take<float>(Scratch::values, 2 * kTileRows * kScoreStride);
        if constexpr (sizeof(Element) == sizeof(float)) {
            weights_ = scores_; // in place
        } else {
            weights_ = reinterpret_cast<Element*>(scores_ + kTileRows * kScoreStride);
        }
    }

    /// Queries [first, first + count) of a head, at most what there is memory for.
    void attend(Index batch, Index head, Index first, Index count) {
        batch_ = batch, head_ = head, first_ = first;
        for (Index key = 0; key < p_.keys; key += kKeyBlock) {
            const Index keys = smaller(p_.keys - key, kKeyBlock);
            pack(key, keys);
            for (Index query = 0; query < count; query += kTileRows) {
                const auto num_rows = static_cast<int>(smaller(count - query, kTileRows));
                if (key == 0) begin(query, num_rows);
                add_keys(query, num_rows, key, keys);
                if (key + keys == p_.keys) finish(query, num_rows);
            }
        }
    }

private:
    static constexpr Index kScoreStride = row_stride<float>(kKeyBlock);
    static constexpr Index kValuePanel = kKeyBlock * kPanel;

    template <typename T> static T* take(Scratch use, Index count) {
        return static_cast<T*>(scratch(use, static_cast<std::size_t>(count) * sizeof(T)));
    }

    void pack(Index first_key, Index keys) {
        with_rows(p_.k, batch_, head_, first_key,
                  [&](auto rows) { pack_keys(rows, keys, p_.head_dim, staged_, keys_, key_panel_); });
        with_rows(p_.v, batch_, head_, first_key,
                  [&](auto rows) { pack_values(rows, keys, p_.head_dim, values_, kValuePanel); });
    }

    void begin(Index query, int num_rows) {
        Element* to = queries_ + query * query_stride_;
        with_rows(p_.q, batch_, head_, first_ + query, [&](auto rows) { pack_rows(rows, num_rows, p_.head_dim, to); });
        for (Index row = query; row < query + num_rows; ++row) highest_[row] = kLowestFloat, totals_[row] = 0;
    }

    /// Add the packed keys, which begin with `first_key`, to the sums of a tile of queries.
    void add_keys(Index query, int num_rows, Index first_key, Index keys) {
        const Element *queries[kTileRows], *weights[kTileRows];
        float* sums = sums_ + query * sum_stride_;
        for (int r = 0; r < num_rows; ++r) {
            queries[r] = queries_ + (query + r) * query_stride_;
            weights[r] = weights_ + r * kScoreStride;
            for (Index d = 0; d < p_.head_dim; d += kLanes) prefetch(sums + r * sum_stride_ + d); // for later
        }
        multiply_panels(num_rows, queries, kTileRows * query_stride_, keys_, key_panel_, keys, p_.head_dim, scores_,
                        kScoreStride, false);
        float factors[kLanes];
        weigh(query, num_rows, first_key, keys, factors);
        const bool is_first = first_key == 0;
        for (int r = 0; r < num_rows && !is_first; ++r) {
            float* row = sums + r * sum_stride_;
            if (factors[r] != 1.0f) store_scaled(row, row, p_.head_dim, factors[r]);
        }
        multiply_panels(num_rows, weights, 0, values_, kValuePanel, p_.head_dim, keys, sums, sum_stride_, !is_first);
    }

    void weigh(Index query, int num_rows, Index first_key, Index keys, float* factors) {
        const auto weigh_with = [&](const auto* masks) {
            weigh_tile(num_rows, keys, p_.scale, masks, scores_, weights_, kScoreStride, highest_ + query,
                       totals_ + query, factors);
        };
        const auto weigh_masked = [&](auto element) {
            using Mask = decltype(element);
            AdditiveMask<Mask> masks[kTileRows];
            const char* row = static_cast<const char*>(p_.mask) + batch_ * p_.mask_batch_stride +
                              head_ * p_.mask_head_stride + (first_ + query) * p_.mask_query_stride;
            for (int r = 0; r < num_rows; ++r, row += p_.mask_query_stride)
                masks[r].values = reinterpret_cast<const Mask*>(row) + first_key;
            weigh_with(masks);
        };
        if (p_.mask == nullptr) {
            const NoMask masks[kTileRows]{};
            weigh_with(masks);
        } else if (p_.mask_type == DType::f16) {
            weigh_masked(F16{});
        } else {
            weigh_masked(float{});
        }
    }

    void finish(Index query, int num_rows) const {
        char* out = static_cast<char*>(p_.out) + batch_ * p_.out_batch_stride + head_ * p_.out_head_stride +
                    (first_ + query) * p_.out_token_stride;
        for (Index row = query; row < query + num_rows; ++row) {
            const float* sums = sums_ + row * sum_stride_;
            const float factor = totals_[row] == 0 ? 0.0f : 1.0f / totals_[row];
            switch (p_.out_type) {
                case DType::f32: store_scaled(reinterpret_cast<float*>(out), sums, p_.head_dim, factor); break;
                case DType::f16: store_scaled(reinterpret_cast<F16*>(out), sums, p_.head_dim, factor); break;
                case DType::bf16: store_scaled(reinterpret_cast<BF16*>(out), sums, p_.head_dim, factor); break;
            }
            out += p_.out_token_stride;
            if (p_.lse == nullptr) continue;
            char* lse = reinterpret_cast<char*>(p_.lse) + batch_ * p_.lse_batch_stride + head_ * p_.lse_head_stride +
                        (first_ + row) * p_.lse_query_stride;
            const double total = totals_[row]; // 0 without any key: its logarithm is -inf
            *reinterpret_cast<float*>(lse) = static_cast<float>(highest_[row] + __builtin_log(total));
        }
    }

    const AttentionProblem& p_;
    Index batch_ = 0, head_ = 0, first_ = 0;
    Index query_stride_, sum_stride_, key_panel_;
    Element *queries_, *keys_, *values_, *staged_, *weights_;
    float *scores_, *sums_, *highest_, *totals_;
};

} // namespace
} // namespace edgedit::kernels
