// Addresses of matrix rows in two levels.
#pragma once

#include "kernels/impl/elements.hpp"
#include "kernels/micro.hpp"

namespace edgedit::kernels {
namespace {

struct TileRows {
    const char* at[kTileRows];
};

/// Addresses of `count` <= kTileRows rows from row `first` on.
inline TileRows tile_rows(const void* data, Index tokens, Index batch_stride, Index row_stride, Index first,
                          int count) {
    TileRows rows{};
    Index token = first % tokens;
    const char* batch = static_cast<const char*>(data) + first / tokens * batch_stride;
    for (int r = 0; r < count; ++r) {
        rows.at[r] = batch + token * row_stride;
        if (++token == tokens) token = 0, batch += batch_stride;
    }
    return rows;
}

inline TileRows tile_rows(const Rows& rows, Index first, int count) {
    return tile_rows(rows.data, rows.tokens, rows.batch_stride, rows.row_stride, first, count);
}

} // namespace
} // namespace edgedit::kernels
