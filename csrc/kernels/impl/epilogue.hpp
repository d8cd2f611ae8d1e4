// What follows the product: bias, activation, gate, residual, and the type of the result.
#pragma once

#include "kernels/impl/activation.hpp"
#include "kernels/impl/fetch.hpp"
#include "kernels/impl/q8_0.hpp"
#include "kernels/impl/rows.hpp"

namespace edgedit::kernels {
namespace {

EDGEDIT_SIMD Floats load_as(Type type, const void* row, Index column, Index count) {
    const auto part = [=](auto element) {
        const auto* from = static_cast<const decltype(element)*>(row) + column;
        return count < kLanes ? load_first(from, count) : load(from);
    };
    return type == Type::f32 ? part(float{}) : type == Type::f16 ? part(F16{}) : part(BF16{});
}

EDGEDIT_SIMD void store_as(Type type, void* row, Index column, Index count, Floats values) {
    const auto part = [=](auto element) {
        auto* to = static_cast<decltype(element)*>(row) + column;
        return count < kLanes ? store_first(to, values, count) : store(to, values);
    };
    return type == Type::f32 ? part(float{}) : type == Type::f16 ? part(F16{}) : part(BF16{});
}

/// Rows of the output and of what goes into them after the product: `count` <= kTileRows, from row `first` on.
///
/// Results in blocks are first put together as floats, of up to kGroup panels from column `first_column` on, which
/// begins a block.
struct OutputRows {
    OutputRows(const LinearProblem& problem, Index first, int count, Index first_column)
        : count(count), type(problem.out_type), first_column(first_column) {
        out = tile_rows(problem.out, problem.out_tokens, problem.out_batch_stride, problem.out_row_stride, first, count);
        if (problem.gate.data != nullptr) gate = tile_rows(problem.gate, first, count);
        if (problem.residual.data != nullptr) residual = tile_rows(problem.residual, first, count);
    }

    OutputRows(const OutputRows&) = delete;

    bool has_blocks() const { return type == Type::q8_0; }

    /// Columns from `column` on, which `finish` has computed; `left` to the last.
    EDGEDIT_SIMD void put(int row, Index column, Index left, Floats values) const {
        if (has_blocks())
            store(floats[row] + (column - first_column), values);
        else
            store_as(type, const_cast<char*>(out.at[row]), column, left, values);
    }

    /// After the last of `columns` columns.
    void close(Index columns) const {
        if (!has_blocks()) return;
        for (int r = 0; r < count; ++r) {
            auto* blocks = reinterpret_cast<BlockQ8_0*>(const_cast<char*>(out.at[r])) + first_column / kShortBlock;
            for (Index i = 0; i < columns / kShortBlock; ++i) quantise_to_q8_0(floats[r] + i * kShortBlock, blocks[i]);
        }
    }

    /// What will be read and written of columns [first, first + columns).
    void add_to(Fetch& fetch, const LinearProblem& problem, Index first, Index columns) const {
        const auto add = [&](const TileRows& rows, Type type) {
            for (int r = 0; r < count; ++r) fetch.add(rows.at[r] + first * itemsize(type), columns * itemsize(type));
        };
        if (!has_blocks()) add(out, type);
        if (problem.residual.data != nullptr) add(residual, problem.residual.type);
    }

    int count;
    Type type;
    Index first_column;
    TileRows out;
    TileRows gate{};
    TileRows residual{};
    alignas(64) mutable float floats[kTileRows][kGroup * kPanel]; ///< where the output has blocks
};

template <Activation kind>
void finish_as(const LinearProblem& problem, const OutputRows& rows, Index first, Index count, const float* sums,
               Index stride) {
    for (Index i = 0; i < count; i += kLanes) {
        const Index column = first + i, left = count - i;
        const Floats bias = problem.bias == nullptr ? zeros() : load_as(Type::f32, problem.bias, column, left);
        for (int r = 0; r < rows.count; ++r) {
            Floats values = activate<kind>(load(sums + r * stride + i) + bias);
            if (problem.gate.data != nullptr)
                values = values * load_as(problem.gate.type, rows.gate.at[r], column, left);
            if (problem.residual.data != nullptr)
                values = values + load_as(problem.residual.type, rows.residual.at[r], column, left);
            rows.put(r, column, left, values);
        }
    }
}

/// Columns [first, first + count) of some output rows from their sums, `stride` elements from row to row and readable
/// up to whole vectors.
inline void finish(const LinearProblem& problem, const OutputRows& rows, Index first, Index count, const float* sums,
                   Index stride) {
    using A = Activation;
    switch (problem.activation) {
        case A::none: return finish_as<A::none>(problem, rows, first, count, sums, stride);
        case A::gelu_tanh: return finish_as<A::gelu_tanh>(problem, rows, first, count, sums, stride);
        case A::gelu_erf: return finish_as<A::gelu_erf>(problem, rows, first, count, sums, stride);
        case A::gelu_quick: return finish_as<A::gelu_quick>(problem, rows, first, count, sums, stride);
        case A::silu: return finish_as<A::silu>(problem, rows, first, count, sums, stride);
        case A::relu: return finish_as<A::relu>(problem, rows, first, count, sums, stride);
    }
}

inline void finish_tile(const LinearProblem& problem, Index first_row, int rows, Index first_column, Index columns,
                        const float* sums, Index sums_stride) {
    const OutputRows output(problem, first_row, rows, first_column);
    finish(problem, output, first_column, columns, sums, sums_stride);
    output.close(columns);
}

} // namespace
} // namespace edgedit::kernels
