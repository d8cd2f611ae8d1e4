// Linear layers in int8: the loops around its micro-kernel.
#pragma once

#include "kernels/impl/epilogue.hpp"
#include "kernels/impl/int8_micro.hpp"
#include "kernels/impl/split.hpp"
#include "kernels/scratch.hpp"

namespace edgedit::kernels {
namespace {

/// Bytes of quantised activations that a thread keeps. Where its rows take more, they pass in several turns, each of
/// which expands the weight again.
constexpr Index kInt8RowsNbytes = 8 << 20;

/// One thread's part of a linear layer, the weight in blocks of kElements.
template <typename P, Index kElements> class Int8LinearPart {
public:
    Int8LinearPart(const LinearProblem& problem, const Part& part)
        : problem_(problem), weight_(problem.weight), part_(part), row_blocks_(weight_.inner / kShortBlock),
          has_offsets_(weight_.type == Type::q4_k || weight_.type == Type::q5_k),
          splits_block_(problem.inner[0] % kShortBlock != 0),
          keeps_sums_(weight_.inner > kBlock) {
        const Index tiles = ceil_div(part.rows.end - part.rows.begin, kTileRows);
        const Index tile_nbytes = kTileRows * row_blocks_ * Index{sizeof(Row)};
        const Index turns = larger(1, ceil_div(tiles * tile_nbytes, larger(kInt8RowsNbytes, tile_nbytes)));
        turn_rows_ = ceil_div(tiles, turns) * kTileRows;
        rows_ = room<Row>(Scratch::rows, turn_rows_ * row_blocks_);
        blocks_ = room<Block>(Scratch::panels, kGroup * kPanelBlocks);
        sums_ = room<float>(Scratch::sums, (keeps_sums_ ? turn_rows_ : kTileRows) * kColumns);
        values_ = room<float>(Scratch::values, weight_.inner);
    }

    void run() const {
        for (Index row = part_.rows.begin; row < part_.rows.end; row += turn_rows_) {
            const Range rows{row, smaller(row + turn_rows_, part_.rows.end)};
            for (Index i = rows.begin; i < rows.end; ++i) quantise_row(i, rows_ + (i - rows.begin) * row_blocks_);
            for (Index panel = part_.panels.begin; panel < part_.panels.end; panel += kGroup)
                pass(rows, {panel, smaller(panel + kGroup, part_.panels.end)});
        }
    }

private:
    using Row = ActivationBlock<P>;
    using Block = Int8Block<P, kElements>;
    static constexpr Index kColumns = kGroup * kPanel, kPanelBlocks = kBlock / kElements;

    template <typename Element> static Element* room(Scratch use, Index count) {
        return static_cast<Element*>(scratch(use, static_cast<std::size_t>(count) * sizeof(Element)));
    }

    void quantise_row(Index row, Row* blocks) const {
        if (splits_block_) {
            float* to = values_;
            for (int s = 0; s < problem_.num_sources; to += problem_.inner[s++]) copy_as_floats(row, s, to);
            return quantise(values_, row_blocks_, blocks);
        }
        for (int s = 0; s < problem_.num_sources; ++s) {
            const Index count = problem_.inner[s] / kShortBlock;
            const char* from = tile_rows(problem_.sources[s], row, 1).at[0];
            switch (problem_.sources[s].type) {
                case Type::q8_0: take(reinterpret_cast<const BlockQ8_0*>(from), count, blocks); break;
                case Type::f32: quantise(reinterpret_cast<const float*>(from), count, blocks); break;
                default: copy_as_floats(row, s, values_), quantise(values_, count, blocks);
            }
            blocks += count;
        }
    }

    static void quantise(const float* x, Index count, Row* blocks) {
        for (Index i = 0; i < count; ++i) quantise_block<P>(x + i * kShortBlock, blocks[i]);
    }

    static void take(const BlockQ8_0* quantised, Index count, Row* blocks) {
        for (Index i = 0; i < count; ++i) take_block<P>(quantised[i], blocks[i]);
    }

    /// What source `s` holds of a row's inner elements.
    void copy_as_floats(Index row, int s, float* to) const {
        const Rows& source = problem_.sources[s];
        const char* from = tile_rows(source, row, 1).at[0];
        for (Index i = 0; i < problem_.inner[s]; i += kLanes) {
            const Index left = problem_.inner[s] - i;
            store_as(Type::f32, to, i, left, load_as(source.type, from, i, left));
        }
    }

    void pass(Range rows, Range panels) const {
        const Index first_column = panels.begin * kPanel, columns = smaller(panels.end * kPanel, weight_.columns);
        for (Index begin = 0; begin < weight_.inner; begin += kBlock) {
            const Index end = smaller(begin + kBlock, weight_.inner);
            for (Index panel = panels.begin; panel < panels.end; ++panel)
                expand_int8_blocks(weight_, panel, begin, end, blocks_ + (panel - panels.begin) * kPanelBlocks);
            for (Index row = rows.begin; row < rows.end; row += kTileRows) {
                const auto num_rows = static_cast<int>(smaller(kTileRows, rows.end - row));
                const Index place = row - rows.begin;
                const Row* first = rows_ + place * row_blocks_ + begin / kShortBlock;
                float* sums = keeps_sums_ ? sums_ + place * kColumns : sums_;
                multiply(first, num_rows, panels.end - panels.begin, (end - begin) / kShortBlock, sums, begin > 0);
                if (end == weight_.inner)
                    finish_tile(problem_, row, num_rows, first_column, columns - first_column, sums, kColumns);
            }
        }
    }

    /// A tile of rows, from the first of `count` blocks of each on, times a group of panels.
    void multiply(const Row* first, int num_rows, Index num_panels, Index count, float* sums,
                  bool accumulate) const {
        const Row* rows[kTileRows];
        for (int r = 0; r < num_rows; ++r) rows[r] = first + r * row_blocks_;
        for (Index i = 0; i < num_panels; ++i)
            multiply_int8_tile(num_rows, rows, i + 1 == num_panels ? kTileRows * row_blocks_ : 0,
                               blocks_ + i * kPanelBlocks, count, has_offsets_, sums + i * kPanel, kColumns,
                               accumulate);
    }

    const LinearProblem& problem_;
    const Weight& weight_;
    Part part_;
    Index row_blocks_;
    bool has_offsets_;
    bool splits_block_; ///< 32 neighbours are of both sources
    bool keeps_sums_; ///< more than one block of inner elements
    Index turn_rows_;
    Row* rows_;
    Block* blocks_;
    float* sums_;
    float* values_;
};

inline bool has_int8(Type type) { return decode_blocks_of(type) != nullptr; }

inline bool is_multiplied_in_int8(const LinearProblem& problem) {
    return problem.compute == Compute::int8 && has_int8(problem.weight.type);
}

/// A thread's part of a problem that `is_multiplied_in_int8`.
inline void linear_in_int8(const LinearProblem& problem, const Part& part) {
    switch (problem.weight.type) {
        case Type::q8_0: return Int8LinearPart<WideProducts, 32>(problem, part).run();
        case Type::q6_k: return Int8LinearPart<ByteProducts, 16>(problem, part).run();
        default: return Int8LinearPart<ByteProducts, 32>(problem, part).run();
    }
}

} // namespace
} // namespace edgedit::kernels
