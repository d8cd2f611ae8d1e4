// Linear layers in int8: the loops around its micro-kernel.
#pragma once

#include "kernels/impl/epilogue.hpp"
#include "kernels/impl/int8_micro.hpp"
#include "kernels/impl/split.hpp"
#include "kernels/scratch.hpp"

namespace edgedit::kernels {
namespace {

inline bool is_multiplied_in_int8(const LinearProblem& problem) {
    return problem.compute == Compute::int8 && decode_blocks_of(problem.weight.type) != nullptr;
}

/// Bytes of quantised activations that a thread keeps. More rows pass in several turns, each of which expands the weight
/// again.
constexpr Index kActivationNbytes = 8 << 20;

/// Inner elements of a row as floats: where the sources do not hold them so, in `room`.
inline const float* row_as_floats(const LinearProblem& problem, Index row, float* room) {
    Index column = 0;
    for (int i = 0; i < problem.num_sources; ++i) {
        const Rows& source = problem.sources[i];
        const char* from = tile_rows(source, row, 1).at[0];
        if (problem.num_sources == 1 && source.type == DType::f32) return reinterpret_cast<const float*>(from);
        for (Index k = 0; k < problem.inner[i]; k += kLanes) {
            const Index left = problem.inner[i] - k;
            const Floats values = load_as(source.type, from, k, left);
            left < kLanes ? store_first(room + column + k, values, left) : store(room + column + k, values);
        }
        column += problem.inner[i];
    }
    return room;
}

template <typename P>
void quantise_rows(const LinearProblem& problem, Index first, Index end, ActivationBlock<P>* blocks) {
    const Index inner = problem.weight.inner;
    auto* room = static_cast<float*>(scratch(Scratch::values, static_cast<std::size_t>(inner) * sizeof(float)));
    for (Index row = first; row < end; ++row) {
        const float* x = row_as_floats(problem, row, room);
        for (Index k = 0; k < inner; k += kShortBlock) quantise_block<P>(x + k, *blocks++);
    }
}

template <typename P, Index kElements> void linear_in_int8_as(const LinearProblem& problem, const Part& part) {
    using Block = Int8Block<P, kElements>;
    using Activations = ActivationBlock<P>;
    constexpr Index kColumns = kGroup * kPanel, kBlocks = kBlock / kElements;
    const Weight& weight = problem.weight;
    const Index row_blocks = weight.inner / kShortBlock, rows = part.rows.end - part.rows.begin;
    const bool has_offsets = weight.type == Type::q4_k || weight.type == Type::q5_k;
    const Index most_tiles = kActivationNbytes / (row_blocks * Index{sizeof(Activations)} * kTileRows);
    const Index pass_rows = smaller(ceil_div(rows, kTileRows), most_tiles < 1 ? 1 : most_tiles) * kTileRows;
    const Index sum_rows = weight.inner <= kBlock ? kTileRows : pass_rows;
    const auto room = [](Scratch use, Index count, std::size_t nbytes) {
        return scratch(use, static_cast<std::size_t>(count) * nbytes);
    };
    auto* activations = static_cast<Activations*>(room(Scratch::rows, pass_rows * row_blocks, sizeof(Activations)));
    auto* blocks = static_cast<Block*>(room(Scratch::panels, kGroup * kBlocks, sizeof(Block)));
    auto* sums = static_cast<float*>(room(Scratch::sums, sum_rows * kColumns, sizeof(float)));
    for (Index pass = part.rows.begin; pass < part.rows.end; pass += pass_rows) {
        const Index pass_end = smaller(pass + pass_rows, part.rows.end);
        quantise_rows(problem, pass, pass_end, activations);
        for (Index panel = part.panels.begin; panel < part.panels.end; panel += kGroup) {
            const Index panels = smaller(kGroup, part.panels.end - panel);
            const Index columns = smaller(panels * kPanel, weight.columns - panel * kPanel);
            for (Index begin = 0; begin < weight.inner; begin += kBlock) {
                const Index end = smaller(begin + kBlock, weight.inner);
                for (Index i = 0; i < panels; ++i)
                    expand_int8_blocks(weight, panel + i, begin, end, blocks + i * kBlocks);
                for (Index row = pass; row < pass_end; row += kTileRows) {
                    const auto num_rows = static_cast<int>(smaller(kTileRows, pass_end - row));
                    const Activations* tile[kTileRows];
                    for (int r = 0; r < num_rows; ++r)
                        tile[r] = activations + (row + r - pass) * row_blocks + begin / kShortBlock;
                    float* c = sums + (weight.inner <= kBlock ? 0 : row - pass) * kColumns;
                    for (Index i = 0; i < panels; ++i)
                        multiply_int8_tile(num_rows, tile, i + 1 == panels ? kTileRows * row_blocks : 0,
                                           blocks + i * kBlocks, (end - begin) / kShortBlock, has_offsets,
                                           c + i * kPanel, kColumns, begin > 0);
                    if (end == weight.inner)
                        finish_tile(problem, row, num_rows, panel * kPanel, columns, c, kColumns);
                }
            }
        }
    }
}

/// A thread's part of a problem that `is_multiplied_in_int8`.
inline void linear_in_int8(const LinearProblem& problem, const Part& part) {
    switch (problem.weight.type) {
        case Type::q8_0: return linear_in_int8_as<WideProducts, 32>(problem, part);
        case Type::q6_k: return linear_in_int8_as<ByteProducts, 16>(problem, part);
        default: return linear_in_int8_as<ByteProducts, 32>(problem, part);
    }
}

} // namespace
} // namespace edgedit::kernels
