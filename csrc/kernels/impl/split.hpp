// A thread's part of a linear layer.
#pragma once

#include "kernels/impl/quant_blocks.hpp"
#include "kernels/micro.hpp"

namespace edgedit::kernels {
namespace {

struct Range {
    Index begin;
    Index end;
};

/// Part `index` of [0, total) in `parts` parts.
inline Range part_of(Index total, Index index, Index parts) {
    return {total * index / parts, total * (index + 1) / parts};
}

struct Part {
    Range rows;
    Range panels;
};

/// The threads form a grid over tiles of rows and panels of columns. Of the grids that they fill, this takes the one
/// whose largest part is smallest, and among equals the one whose parts read the least.
inline Part part_of_thread(Index rows, Index columns, int thread, int num_threads, Index tile = kTileRows,
                           Index panel = kPanel) {
    const Index tiles = ceil_div(rows, tile), panels = ceil_div(columns, panel);
    Index best_high = 1, best_area = 0, best_edges = 0;
    for (Index high = 1; high <= num_threads; ++high) {
        if (num_threads % high != 0) continue;
        const Index part_tiles = ceil_div(tiles, high), part_panels = ceil_div(panels, num_threads / high);
        const Index area = part_tiles * part_panels, edges = part_tiles * tile + part_panels * panel;
        if (best_area == 0 || area < best_area || (area == best_area && edges < best_edges))
            best_high = high, best_area = area, best_edges = edges;
    }
    const Index wide = num_threads / best_high;
    const Range part_tiles = part_of(tiles, thread / wide, best_high);
    return {{part_tiles.begin * tile, smaller(part_tiles.end * tile, rows)},
            part_of(panels, thread % wide, wide)};
}

/// The same in panels of the family, none of which ends within a block of the output.
inline Part part_of_thread(const LinearProblem& problem, int thread, int num_threads) {
    const Index columns = problem.weight.columns;
    const Index together = problem.out_type == Type::q8_0 ? ceil_div(kShortBlock, kPanel) : 1;
    Part part = part_of_thread(problem.rows, columns, thread, num_threads, kTileRows, together * kPanel);
    part.panels = {part.panels.begin * together, smaller(part.panels.end * together, ceil_div(columns, kPanel))};
    return part;
}

} // namespace
} // namespace edgedit::kernels
